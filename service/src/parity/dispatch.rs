//! Which kernel runs: the best that the CPU has, chosen once, or the one that `RAIDD_PARITY` names.

use std::sync::OnceLock;

use super::{Term, scalar};

/// The environment variable that overrides the choice.
const OVERRIDE: &str = "RAIDD_PARITY";

type Combine = unsafe fn(usize, &[*mut u8], bool, &[Term]);

/// A way to compute combinations.
pub struct Kernel {
    name: &'static str,
    available: fn() -> bool,
    combine: Combine,
}

impl Kernel {
    /// Its name, as `RAIDD_PARITY` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// True if this CPU can run it.
    pub fn available(&self) -> bool {
        (self.available)()
    }

    /// # Safety
    ///
    /// As [`super::combine`]; and the kernel is available.
    #[inline]
    pub(super) unsafe fn run(&self, len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
        // SAFETY: the caller's promise.
        unsafe { (self.combine)(len, dst, accumulate, terms) }
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

/// All kernels of this architecture, best first; whether the CPU can run one, [`Kernel::available`] says.
pub static KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "gfni", available: super::gfni::available, combine: super::gfni::combine },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "avx512", available: super::avx512::available, combine: super::avx512::combine },
    #[cfg(target_arch = "x86_64")]
    Kernel { name: "avx2", available: super::avx2::available, combine: super::avx2::combine },
    Kernel { name: "scalar", available: || true, combine: scalar::combine },
];

/// A kernel was asked for by name that is not to be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the parity kernel {name:?} is not available on this CPU; available: {available}")]
pub struct UnknownKernel {
    /// The name.
    pub name: String,
    /// The names of the available kernels.
    pub available: String,
}

/// The kernel of that name, or the best one if there is no name.
///
/// # Errors
///
/// If no kernel has the name, or the CPU cannot run it.
pub fn select(name: Option<&str>) -> Result<&'static Kernel, UnknownKernel> {
    let mut candidates = KERNELS.iter().filter(|k| k.available());
    match name {
        None => Ok(candidates.next().expect("the scalar kernel is always available")),
        Some(name) => candidates.find(|k| k.name == name).ok_or_else(|| {
            let names: Vec<_> = KERNELS.iter().filter(|k| k.available()).map(Kernel::name).collect();
            UnknownKernel { name: name.to_owned(), available: names.join(", ") }
        }),
    }
}

/// The kernel of this process, chosen at the first call. A `RAIDD_PARITY` that names no available kernel is reported
/// once, and the best kernel is used.
pub fn kernel() -> &'static Kernel {
    static CHOSEN: OnceLock<&'static Kernel> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let wanted = std::env::var(OVERRIDE).ok();
        select(wanted.as_deref()).unwrap_or_else(|error| {
            tracing::warn!("{OVERRIDE}: {error}; the best one is used");
            select(None).expect("the scalar kernel is always available")
        })
    })
}
