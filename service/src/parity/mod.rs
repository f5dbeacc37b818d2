//! Parity kernels: XOR, P+Q, delta update and recovery as linear combinations over GF(2^8) modulo 11Dh, with run-time
//! dispatch.
//!
//! The core orders parity as [`raid_core::action::Step::Combine`]; this module executes it on memory. Every kernel is
//! the same loop ([`lanes`]) over another vector register, so that all of them read each source once, keep the sums in
//! registers and write each destination once, however many terms there are:
//!
//! | kernel | product of a byte vector and a coefficient | needs |
//! |---|---|---|
//! | `gfni` | `vgf2p8affineqb` with the coefficient's 8x8 bit matrix | GFNI, AVX-512 F and BW |
//! | `avx512` | two `vpshufb` in 16-entry tables, one per nibble | AVX-512 F and BW |
//! | `avx2` | the same, 32 bytes at a time | AVX2 |
//! | `scalar` | table look-ups; the reference that the others are tested against | nothing |
//!
//! The kernel is chosen once, by [`kernel`]. `RAIDD_PARITY=scalar|avx2|avx512|gfni` overrides the choice.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bench;
mod dispatch;
#[cfg(target_arch = "x86_64")]
mod gfni;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod memory;
mod scalar;
mod tables;
#[cfg(test)]
mod tests;

pub use bench::{BenchReport, BenchRow, bench_report};
pub use dispatch::{KERNELS, Kernel, UnknownKernel, kernel, select};
pub use memory::{compare, copy, copy_streaming, is_zero};

/// The most terms that [`combine_slices`] takes. The kernels take any number.
pub const MAX_TERMS: usize = 64;

/// One term of a combination: a source, and the coefficient with which it is added to each output.
pub type Term = (*const u8, [u8; 2]);

/// `dst[j] = (accumulate ? dst[j] : 0) + Σ coef[j] * src` for each destination, over `len` bytes.
///
/// `dst` has one or two entries. Any length and any alignment is right; multiples of 512 bytes are fast. Without terms
/// and without `accumulate` the destinations are cleared.
///
/// # Panics
///
/// If `dst` has neither one nor two entries.
///
/// # Safety
///
/// - The kernel is available on this CPU, as all are that [`kernel`] and [`select`] return.
/// - Every source is readable and every destination writable for `len` bytes, by nobody else during the call.
/// - A source may be the very address of a destination. No other overlap: neither of a source with a destination at
///   another offset, nor of the two destinations.
#[inline]
pub unsafe fn combine(kernel: &Kernel, len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    assert!(matches!(dst.len(), 1 | 2), "a combination has one or two outputs, not {}", dst.len());
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.run(len, dst, accumulate, terms) }
}

/// [`combine`] on slices, for callers that are not in a hurry: lengths are checked, and nothing can overlap.
///
/// # Panics
///
/// If there are not one or two destinations, if the lengths differ, if there are more than [`MAX_TERMS`] terms, or if
/// the CPU cannot run the kernel.
pub fn combine_slices(kernel: &Kernel, dst: &mut [&mut [u8]], accumulate: bool, terms: &[(&[u8], [u8; 2])]) {
    assert!(matches!(dst.len(), 1 | 2), "a combination has one or two outputs, not {}", dst.len());
    assert!(terms.len() <= MAX_TERMS, "{} terms, more than {MAX_TERMS}", terms.len());
    assert!(kernel.available(), "this CPU cannot run {kernel:?}");
    let len = dst[0].len();
    assert!(
        dst.iter().all(|d| d.len() == len) && terms.iter().all(|t| t.0.len() == len),
        "all sources and destinations of a combination have one length"
    );
    let mut sources: [Term; MAX_TERMS] = [(std::ptr::null(), [0; 2]); MAX_TERMS];
    for (to, (src, coef)) in sources.iter_mut().zip(terms) {
        *to = (src.as_ptr(), *coef);
    }
    let outputs = dst.len();
    let mut pointers = [std::ptr::null_mut(); 2];
    for (to, d) in pointers.iter_mut().zip(dst) {
        *to = d.as_mut_ptr();
    }
    // SAFETY: the kernel is available; each pointer comes from a slice of `len` bytes; the destinations are exclusive
    // borrows, so nothing overlaps them.
    unsafe { combine(kernel, len, &pointers[..outputs], accumulate, &sources[..terms.len()]) }
}
