//! GFNI on AVX-512 registers: one `vgf2p8affineqb` is the product of 64 bytes with any coefficient.

use std::arch::x86_64::*;

use super::Term;
use super::avx512::{self, Zmm};
use super::lanes::{self, Vector};
use super::tables::MATRICES;

/// True if this CPU can run the kernel.
pub(super) fn available() -> bool {
    avx512::available() && is_x86_feature_detected!("gfni")
}

/// The same register; only products are others.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Gfni(Zmm);

// SAFETY: a bare register; all instructions are AVX-512 F and BW and GFNI; `combine` enables them and is reached only
// where `available` says so.
unsafe impl Vector for Gfni {
    type Coef = __m512i;

    #[inline(always)]
    unsafe fn add(self, a: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Gfni(self.0.add(a.0)) }
    }

    #[inline(always)]
    unsafe fn add2(self, a: Self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Gfni(self.0.add2(a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn coef(c: u8) -> Self::Coef {
        // SAFETY: the trait's contract. The matrix is a bit pattern; its sign means nothing.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(c)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, x: Self, matrix: Self::Coef) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Gfni(self.0.add(Zmm(_mm512_gf2p8affine_epi64_epi8::<0>(x.0.0, matrix)))) }
    }
}

/// See [`super::combine`].
///
/// # Safety
///
/// As [`super::combine`], on a CPU for which [`available`] is true.
pub(super) unsafe fn combine(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    unsafe fn inner(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
        // SAFETY: the caller's promise; what `Gfni` needs is enabled here.
        unsafe { lanes::combine::<Gfni, 4, 4>(len, dst, accumulate, terms) }
    }
    debug_assert!(available());
    // SAFETY: the caller's promise, the CPU's features included.
    unsafe { inner(len, dst, accumulate, terms) }
}
