//! AVX2: 32 bytes at a time, products out of nibble tables by `vpshufb`.

use std::arch::x86_64::*;

use super::lanes::{self, Vector};
use super::tables::NIBBLES;
use super::{Term, scalar};

/// True if this CPU can run the kernel.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Ymm(__m256i);

// SAFETY: a bare register; all instructions are AVX2 or below; `combine` enables AVX2 and is reached only where
// `available` says so.
unsafe impl Vector for Ymm {
    type Coef = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn add(self, a: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_xor_si256(self.0, a.0)) }
    }

    #[inline(always)]
    unsafe fn coef(c: u8) -> Self::Coef {
        let table = NIBBLES.0[usize::from(c)].as_ptr();
        // SAFETY: the trait's contract; each table has 16 bytes at 0 and 16 at 16.
        unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, x: Self, (low, high): Self::Coef) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let l = _mm256_shuffle_epi8(low, _mm256_and_si256(x.0, mask));
            let h = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(x.0), mask));
            Ymm(_mm256_xor_si256(self.0, _mm256_xor_si256(l, h)))
        }
    }
}

/// See [`super::combine`].
///
/// # Safety
///
/// As [`super::combine`], on a CPU for which [`available`] is true.
pub(super) unsafe fn combine(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    #[target_feature(enable = "avx2")]
    unsafe fn inner(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
        // SAFETY: the caller's promise; AVX2 is enabled here.
        unsafe { lanes::combine::<Ymm, 4, 2>(len, dst, accumulate, terms) }
    }
    debug_assert!(available());
    if len < Ymm::BYTES {
        // SAFETY: the caller's promise.
        return unsafe { scalar::combine(len, dst, accumulate, terms) };
    }
    // SAFETY: the caller's promise, the CPU's features included.
    unsafe { inner(len, dst, accumulate, terms) }
}
