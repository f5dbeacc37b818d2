//! The reference kernel: byte by byte out of tables, on any CPU. The other kernels are tested against it, and finish
//! with it what is shorter than their vectors.

use super::Term;
use super::tables::NIBBLES;

/// Sums are kept for this many bytes at a time, so that each destination is written once. Long enough for the compiler
/// to vectorize the additions.
const STRIP: usize = 64;

/// See [`super::combine`].
///
/// # Safety
///
/// As [`super::combine`].
pub(super) unsafe fn combine(len: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    // SAFETY: the caller's promise, for all bytes from 0 to `len`.
    unsafe { range(0, len, dst, accumulate, terms) }
}

/// The bytes from `from` to `to`.
///
/// # Safety
///
/// As [`super::combine`], with a length of `to`.
pub(super) unsafe fn range(from: usize, to: usize, dst: &[*mut u8], accumulate: bool, terms: &[Term]) {
    let mut at = from;
    while at < to {
        let n = STRIP.min(to - at);
        let mut sums = [[0u8; STRIP]; 2];
        for (j, d) in dst.iter().enumerate() {
            if accumulate {
                // SAFETY: `at + n <= to`, and the caller promises `to` readable bytes at `d`; the sums are ours.
                unsafe { std::ptr::copy_nonoverlapping(d.add(at), sums[j].as_mut_ptr(), n) };
            }
        }
        for (src, coef) in terms {
            let mut bytes = [0u8; STRIP];
            // SAFETY: `at + n <= to`, and the caller promises `to` readable bytes at `src`. Copying first is what
            // lets a source be a destination.
            unsafe { std::ptr::copy_nonoverlapping(src.add(at), bytes.as_mut_ptr(), n) };
            for (j, _) in dst.iter().enumerate() {
                add(&mut sums[j], &bytes, coef[j]);
            }
        }
        for (j, d) in dst.iter().enumerate() {
            // SAFETY: `at + n <= to`, and the caller promises `to` writable bytes at `d`.
            unsafe { std::ptr::copy_nonoverlapping(sums[j].as_ptr(), d.add(at), n) };
        }
        at += n;
    }
}

/// `sum += coef * bytes`.
#[inline]
fn add(sum: &mut [u8; STRIP], bytes: &[u8; STRIP], coef: u8) {
    match coef {
        0 => {}
        1 => sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b),
        _ => {
            let table = &NIBBLES.0[usize::from(coef)];
            for (s, b) in sum.iter_mut().zip(bytes) {
                *s ^= table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)];
            }
        }
    }
}
