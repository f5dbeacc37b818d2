//! AVX-512: 64 bytes at a time, products out of nibble tables by `vpshufb`, sums of three by `vpternlogq`.

use std::arch::x86_64::*;

use super::Term;
use super::lanes::{self, Vector};
use super::tables::NIBBLES;

/// True if this CPU can run the kernel.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// The truth table of a sum of three.
const XOR3: i32 = 0x96;

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Zmm(pub(super) __m512i);

// SAFETY: a bare register; all instructions are AVX-512 F and BW; `combine` enables them and is reached only where
// `available` says so.
unsafe impl Vector for Zmm {
    type Coef = (__m512i, __m512i);

    #[inline(always)]
    unsafe fn add(self, a: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_xor_si512(self.0, a.0)) }
    }

    #[inline(always)]
    unsafe fn add2(self, a: Self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_ternarylogic_epi64::<XOR3>(self.0, a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn coef(c: u8) -> Self::Coef {
        let table = NIBBLES.0[usize::from(c)].as_ptr();
        // SAFETY: the trait's contract; each table has 16 bytes at 0 and 16 at 16.
        unsafe {
            (
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())),
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(16).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, x: Self, (low, high): Self::Coef) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let l = _mm512_shuffle_epi8(low, _mm512_and_si512(x.0, mask));
            let h = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi64::<4>(x.0), mask));
            Zmm(_mm512_ternarylogic_epi64::<XOR3>(self.0, l, h))
        }
    }
}

/// See [`super::combine`].
///
/// # Safety
///
/// As [`super::combine`], on a CPU for which [`available`] is true.
pub(super) unsafe fn combine(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn inner(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
        // SAFETY: the caller's promise; what `Zmm` needs is enabled here.
        unsafe { lanes::combine::<Zmm, 4, 4>(len, dst, accumulate, terms) }
    }
    debug_assert!(available());
    // SAFETY: the caller's promise, the CPU's features included.
    unsafe { inner(len, dst, accumulate, terms) }
}
