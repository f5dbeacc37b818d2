//! The one loop that all vector kernels are made of, generic over the vector register.
//!
//! A strip of a few vectors is summed over all terms in registers and then stored, so memory is read once and written
//! once whatever the number of terms. What the coefficients are decides how much work a vector is, so the loop is
//! compiled once per [`Shape`].

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::{Term, scalar};

/// A vector register and the field's operations on it.
///
/// # Safety
///
/// An implementation is a bare register: its size is the number of bytes that it holds, and any bytes are a value of it.
///
/// Implementations may use instructions that not every CPU has. All functions are called only from inside a function
/// that enables the implementation's target features, into which they are inlined, and only on a CPU that has them.
/// `load` and `store` access `BYTES` bytes at any alignment.
pub(super) unsafe trait Vector: Copy {
    /// Bytes in a register.
    const BYTES: usize = size_of::<Self>();
    /// A coefficient in the form that [`Vector::mul_add`] wants.
    type Coef: Copy;

    /// All zeros.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: any bytes are a value, the trait's contract says.
        unsafe { std::mem::zeroed() }
    }
    /// Reads a vector.
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: any bytes are a value, and the caller promises as many as a register holds.
        unsafe { from.cast::<Self>().read_unaligned() }
    }
    /// Writes the vector.
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller promises as many bytes as a register holds.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }
    /// `self + a`.
    unsafe fn add(self, a: Self) -> Self;
    /// `self + a + b`.
    #[inline(always)]
    unsafe fn add2(self, a: Self, b: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { self.add(a).add(b) }
    }
    /// The coefficient's tables, from memory.
    unsafe fn coef(c: u8) -> Self::Coef;
    /// `self + k * x`.
    unsafe fn mul_add(self, x: Self, k: Self::Coef) -> Self;
}

/// Asks for the line at `at`, which need not be readable, to be brought into the cache.
#[inline(always)]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch never faults, whatever the address, and every CPU of this architecture has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// What a combination's coefficients have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// One output, all coefficients 1.
    Xor,
    /// One output, any coefficients.
    One,
    /// Two outputs, all coefficients of the first 1.
    PlainAndAny,
    /// Two outputs, any coefficients.
    Two,
}

impl Shape {
    /// The cheapest shape that fits.
    #[inline(always)]
    pub(super) fn of(outputs: usize, terms: &[Term]) -> Shape {
        match (outputs, terms.iter().all(|t| t.1[0] == 1)) {
            (1, true) => Shape::Xor,
            (1, false) => Shape::One,
            (_, true) => Shape::PlainAndAny,
            (_, false) => Shape::Two,
        }
    }
}

/// How far ahead of its use a source is prefetched, in bytes. Ten sources are more streams than a core's own prefetcher
/// follows well: from memory this is a quarter to a half faster, from the cache no slower. Half and twice as far: no
/// better.
const AHEAD: usize = 1024;

const XOR: u8 = Shape::Xor as u8;
const ONE: u8 = Shape::One as u8;
const PLAIN_AND_ANY: u8 = Shape::PlainAndAny as u8;
const TWO: u8 = Shape::Two as u8;

/// See [`super::combine`]. `A` vectors to a strip where one output is summed, `B` where two are.
///
/// # Safety
///
/// As [`super::combine`]; and the CPU has what `V` needs, and the caller enables it.
#[inline(always)]
pub(super) unsafe fn combine<V: Vector, const A: usize, const B: usize>(
    len: usize,
    dst: &[*mut u8],
    accumulate: bool,
    terms: &[Term],
) {
    let p = dst[0];
    let q = if dst.len() == 2 { dst[1] } else { dst[0] };
    // SAFETY: the ranges lie between 0 and `len`, each ends where the next begins, and the caller promises `len` bytes
    // behind each pointer. `q` is used by the shapes with two outputs only, and they come of two destinations.
    unsafe {
        let at = match Shape::of(dst.len(), terms) {
            Shape::Xor => {
                let at = strips::<V, A, XOR>(0, len, p, q, accumulate, terms);
                strips::<V, 1, XOR>(at, len, p, q, accumulate, terms)
            }
            Shape::One => {
                let at = strips::<V, A, ONE>(0, len, p, q, accumulate, terms);
                strips::<V, 1, ONE>(at, len, p, q, accumulate, terms)
            }
            Shape::PlainAndAny => {
                let at = strips::<V, B, PLAIN_AND_ANY>(0, len, p, q, accumulate, terms);
                strips::<V, 1, PLAIN_AND_ANY>(at, len, p, q, accumulate, terms)
            }
            Shape::Two => {
                let at = strips::<V, B, TWO>(0, len, p, q, accumulate, terms);
                strips::<V, 1, TWO>(at, len, p, q, accumulate, terms)
            }
        };
        if at < len {
            scalar::range(at, len, dst, accumulate, terms);
        }
    }
}

/// Works through the whole strips of `U` vectors between `from` and `to`; returns where it stopped.
///
/// # Safety
///
/// As [`combine`], for the bytes from `from` to `to`. `q` is neither read nor written by shapes with one output.
#[inline(always)]
unsafe fn strips<V: Vector, const U: usize, const SHAPE: u8>(
    from: usize,
    to: usize,
    p: *mut u8,
    q: *mut u8,
    accumulate: bool,
    terms: &[Term],
) -> usize {
    let two = SHAPE == PLAIN_AND_ANY || SHAPE == TWO;
    let mut at = from;
    // SAFETY: every access is to V::BYTES bytes at an offset of at most `at + (U - 1) * V::BYTES`, and the loop's
    // condition keeps its end within `to`. All loads of a strip come before its first store, so a source that is a
    // destination is read before it changes.
    unsafe {
        while to - at >= U * V::BYTES {
            let mut sum_p = [V::zero(); U];
            let mut sum_q = [V::zero(); U];
            if accumulate {
                for u in 0..U {
                    sum_p[u] = V::load(p.add(at + u * V::BYTES));
                    if two {
                        sum_q[u] = V::load(q.add(at + u * V::BYTES));
                    }
                }
            }
            let mut rest = terms;
            if SHAPE == XOR {
                while let [a, b, more @ ..] = rest {
                    for (u, sum) in sum_p.iter_mut().enumerate() {
                        let offset = at + u * V::BYTES;
                        prefetch(a.0.wrapping_add(offset + AHEAD));
                        prefetch(b.0.wrapping_add(offset + AHEAD));
                        *sum = sum.add2(V::load(a.0.add(offset)), V::load(b.0.add(offset)));
                    }
                    rest = more;
                }
            }
            for (src, coef) in rest {
                let kp = V::coef(coef[0]);
                let kq = V::coef(coef[1]);
                for u in 0..U {
                    let offset = at + u * V::BYTES;
                    prefetch(src.wrapping_add(offset + AHEAD));
                    let x = V::load(src.add(offset));
                    sum_p[u] = if SHAPE == ONE || SHAPE == TWO { sum_p[u].mul_add(x, kp) } else { sum_p[u].add(x) };
                    if two {
                        sum_q[u] = sum_q[u].mul_add(x, kq);
                    }
                }
            }
            for u in 0..U {
                sum_p[u].store(p.add(at + u * V::BYTES));
                if two {
                    sum_q[u].store(q.add(at + u * V::BYTES));
                }
            }
            at += U * V::BYTES;
        }
    }
    at
}
