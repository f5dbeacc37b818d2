//! Every kernel against the scalar one, and the scalar one against the field's definition.

use std::io::Write;

use proptest::prelude::*;
use raid_core::gf;

use super::tables::{MATRICES, NIBBLES};
use super::*;

/// The field's product from its definition, which shares nothing with the tables of the core or the kernels.
fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

fn power(n: usize) -> u8 {
    (0..n).fold(1, |g, _| mul(g, 2))
}

/// Bytes that look random, from a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// The kernels that this CPU can run; says which it cannot.
fn kernels() -> Vec<&'static Kernel> {
    for kernel in KERNELS.iter().filter(|k| !k.available()) {
        // Past the test harness, which shows what `eprintln` prints of failed tests only.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this CPU cannot run the parity kernel {}", kernel.name());
    }
    KERNELS.iter().filter(|k| k.available()).collect()
}

/// The definition, without any of the kernels' code.
fn expected(before: &[Vec<u8>], accumulate: bool, terms: &[(&[u8], [u8; 2])]) -> Vec<Vec<u8>> {
    let mut out = before.to_vec();
    for (j, sum) in out.iter_mut().enumerate() {
        if !accumulate {
            sum.fill(0);
        }
        for (src, coef) in terms {
            let products: [u8; 256] = std::array::from_fn(|x| mul(coef[j], x as u8));
            for (s, x) in sum.iter_mut().zip(*src) {
                *s ^= products[usize::from(*x)];
            }
        }
    }
    out
}

fn run(kernel: &Kernel, before: &[Vec<u8>], accumulate: bool, terms: &[(&[u8], [u8; 2])]) -> Vec<Vec<u8>> {
    let mut out = before.to_vec();
    let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    combine_slices(kernel, &mut slices, accumulate, terms);
    out
}

#[test]
fn the_field_is_the_one_of_raid6() {
    // x^8 = 11Dh's remainder, and 2 generates all 255 elements: what makes every two-member loss solvable.
    assert_eq!(mul(0x80, 2), 0x1d);
    assert_eq!((1..255).find(|n| power(*n) == 1), None);
    assert_eq!(power(255), 1);
}

#[test]
fn tables_hold_the_products() {
    for c in 0..=255u8 {
        for x in 0..=255u8 {
            let nibbles = &NIBBLES.0[usize::from(c)];
            assert_eq!(nibbles[usize::from(x & 15)] ^ nibbles[16 + usize::from(x >> 4)], mul(c, x));
            let matrix = MATRICES[usize::from(c)].to_le_bytes();
            let product = (0..8).fold(0u8, |p, bit| p | (((matrix[7 - bit] & x).count_ones() as u8 & 1) << bit));
            assert_eq!(product, mul(c, x), "matrix of {c} times {x}");
        }
    }
}

#[test]
fn all_products_by_every_kernel() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in kernels() {
        for c in 0..=255u8 {
            let terms: [(&[u8], [u8; 2]); 1] = [(&all, [c, c ^ 0xa5])];
            for outputs in 1..=2 {
                let before = vec![vec![0x3c; 256]; outputs];
                assert_eq!(run(kernel, &before, false, &terms), expected(&before, false, &terms), "{kernel:?} {c}");
            }
        }
    }
}

/// Coefficients of one kind for `n` terms.
fn coefficients(kind: &str, n: usize) -> Vec<[u8; 2]> {
    (0..n)
        .map(|i| match kind {
            "xor" => [1, 0],
            "pq" => [1, power(i)],
            "zeros and ones" => [(i % 2) as u8, ((i + 1) % 2) as u8],
            _ => [noise(i as u64 + 1, 1)[0], noise(i as u64 + 77, 1)[0]],
        })
        .collect()
}

#[test]
fn every_length_to_past_two_strips() {
    for kernel in kernels() {
        for len in (0..=600).chain([4096 - 512, 4096, 4096 + 512, 9 * 512, 65536 + 512]) {
            for (kind, n, outputs) in [("xor", 3, 1), ("xor", 4, 1), ("any", 3, 1), ("pq", 3, 2), ("any", 3, 2)] {
                let sources: Vec<_> = (0..n).map(|i| noise(len as u64 * 7 + i, len)).collect();
                let coef = coefficients(kind, sources.len());
                let terms: Vec<(&[u8], [u8; 2])> = sources.iter().map(Vec::as_slice).zip(coef).collect();
                let before: Vec<_> = (0..outputs).map(|j| noise(99 + j, len)).collect();
                for accumulate in [false, true] {
                    assert!(
                        run(kernel, &before, accumulate, &terms) == expected(&before, accumulate, &terms),
                        "{kernel:?}, {len} bytes, {kind}, {n} terms, {outputs} outputs, accumulate {accumulate}"
                    );
                }
            }
        }
    }
}

#[test]
fn few_and_many_terms_of_every_kind() {
    let len = 1024 + 512;
    let sources: Vec<_> = (0..MAX_TERMS as u64).map(|i| noise(i + 5, len)).collect();
    for kernel in kernels() {
        for n in (0..=12).chain([31, 32, 33, MAX_TERMS]) {
            for kind in ["xor", "pq", "zeros and ones", "any"] {
                for outputs in 1..=2 {
                    let terms: Vec<(&[u8], [u8; 2])> =
                        sources.iter().map(Vec::as_slice).zip(coefficients(kind, n)).collect();
                    let before = vec![noise(3, len); outputs];
                    for accumulate in [false, true] {
                        assert!(
                            run(kernel, &before, accumulate, &terms) == expected(&before, accumulate, &terms),
                            "{kernel:?}, {n} terms, {kind}, {outputs} outputs, accumulate {accumulate}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn unaligned_pointers_and_neighbours_untouched() {
    let len = 1536;
    for kernel in kernels() {
        for shift in [0usize, 1, 7, 31, 63] {
            let a = noise(1, len + 256);
            let b = noise(2, len + 256);
            let mut p = vec![0xee; len + 256];
            let mut q = vec![0xdd; len + 256];
            let terms: [(&[u8], [u8; 2]); 2] = [(&a[shift..][..len], [1, 1]), (&b[(shift * 3) % 64..][..len], [1, 2])];
            let want = expected(&[vec![0; len], vec![0; len]], false, &terms);
            let (at_p, at_q) = (64 + shift, 64 + (shift * 5) % 64);
            combine_slices(kernel, &mut [&mut p[at_p..][..len], &mut q[at_q..][..len]], false, &terms);
            assert_eq!(p[at_p..][..len], want[0], "{kernel:?} {shift}");
            assert_eq!(q[at_q..][..len], want[1], "{kernel:?} {shift}");
            assert!(p[..at_p].iter().chain(&p[at_p + len..]).all(|x| *x == 0xee), "{kernel:?} wrote beyond P");
            assert!(q[..at_q].iter().chain(&q[at_q + len..]).all(|x| *x == 0xdd), "{kernel:?} wrote beyond Q");
        }
    }
}

#[test]
fn a_source_may_be_a_destination() {
    for kernel in kernels() {
        for len in [1, 63, 512, 4096 + 512 + 5] {
            let (before_p, before_q, other) = (noise(1, len), noise(2, len), noise(3, len));
            let want = expected(
                &[before_p.clone(), before_q.clone()],
                false,
                &[(&before_p, [3, 5]), (&before_q, [7, 11]), (&other, [13, 17])],
            );
            let (mut p, mut q) = (before_p, before_q);
            let (to_p, to_q) = (p.as_mut_ptr(), q.as_mut_ptr());
            let terms = [(to_p.cast_const(), [3, 5]), (to_q.cast_const(), [7, 11]), (other.as_ptr(), [13, 17])];
            // SAFETY: three live buffers of `len` bytes; the sources that overlap a destination are that destination.
            unsafe { combine(kernel, len, &[to_p, to_q], false, &terms) };
            assert!(p == want[0] && q == want[1], "{kernel:?}, {len} bytes");
        }
    }
}

/// A row of `d` data members with P and Q, made by the kernel under test.
fn row(kernel: &Kernel, d: usize, len: usize) -> Vec<Vec<u8>> {
    let mut members: Vec<_> = (0..d).map(|i| noise(i as u64 + 1, len)).collect();
    let terms: Vec<(&[u8], [u8; 2])> = members.iter().enumerate().map(|(i, m)| (m.as_slice(), [1, power(i)])).collect();
    let parity = run(kernel, &[vec![0; len], vec![0; len]], false, &terms);
    members.extend(parity);
    members
}

/// The terms with which the core has the lost members recomputed from the others, as (member, coefficients).
fn solve(d: usize, lost: &[usize]) -> Vec<(usize, [u8; 2])> {
    let have = (0..d + 2).filter(|i| !lost.contains(i)).fold(0, |mask, i| mask | 1 << i);
    let columns: Vec<_> =
        lost.iter().map(|x| gf::recover(d as u16, have, *x as u16).expect("two losses can be solved")).collect();
    let coef = |i: usize| [columns[0][i], columns.get(1).map_or(0, |c| c[i])];
    (0..d + 2).map(|i| (i, coef(i))).filter(|t| t.1 != [0, 0]).collect()
}

#[test]
fn each_loss_of_one_and_two_members_is_recovered() {
    let len = 512 + 64 + 3;
    for kernel in kernels() {
        for d in 1..=10 {
            let members = row(kernel, d, len);
            let ones = (0..d + 2).map(|x| vec![x]);
            let twos = (0..d + 2).flat_map(|x| (x + 1..d + 2).map(move |y| vec![x, y]));
            for lost in ones.chain(twos) {
                let terms: Vec<(&[u8], [u8; 2])> =
                    solve(d, &lost).into_iter().map(|(i, coef)| (members[i].as_slice(), coef)).collect();
                let rebuilt = run(kernel, &vec![vec![0; len]; lost.len()], false, &terms);
                for (out, x) in rebuilt.iter().zip(&lost) {
                    assert!(*out == members[*x], "{kernel:?}: {d} data members, lost {lost:?}, member {x} is wrong");
                }
            }
        }
    }
}

#[test]
fn a_delta_update_equals_parity_from_scratch() {
    let len = 4096;
    for kernel in kernels() {
        for d in 2..=10 {
            let mut members = row(kernel, d, len);
            for x in 0..d {
                let new = noise(1000 + x as u64, len);
                let old = std::mem::replace(&mut members[x], new.clone());
                let g = power(x);
                let mut parity = members.split_off(d);
                let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                combine_slices(kernel, &mut slices, true, &[(&old, [1, g]), (&new, [1, g])]);
                let terms: Vec<(&[u8], [u8; 2])> =
                    members.iter().enumerate().map(|(i, m)| (m.as_slice(), [1, power(i)])).collect();
                assert!(parity == expected(&parity, false, &terms), "{kernel:?}: {d} data members, member {x}");
                members.extend(parity);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn kernels_agree(
        len in 0usize..3000,
        outputs in 1usize..=2,
        accumulate: bool,
        coef in prop::collection::vec(any::<[u8; 2]>(), 0..=40),
        seed: u64,
    ) {
        let sources: Vec<_> = (0..coef.len()).map(|i| noise(seed ^ i as u64, len)).collect();
        let terms: Vec<(&[u8], [u8; 2])> = sources.iter().map(Vec::as_slice).zip(coef).collect();
        let before: Vec<_> = (0..outputs).map(|j| noise(seed ^ (100 + j as u64), len)).collect();
        let scalar = run(select(Some("scalar")).unwrap(), &before, accumulate, &terms);
        for kernel in KERNELS.iter().filter(|k| k.available()) {
            prop_assert!(run(kernel, &before, accumulate, &terms) == scalar, "{:?}", kernel);
        }
    }
}

#[test]
fn the_choice_can_be_overridden_and_a_wrong_one_is_named() {
    assert_eq!(select(Some("scalar")).unwrap().name(), "scalar");
    assert_eq!(select(None).unwrap().name(), kernels()[0].name());
    let error = select(Some("sse9")).unwrap_err().to_string();
    assert!(error.contains("sse9") && error.contains("scalar"), "{error}");
}

#[test]
fn copies_of_every_length_and_alignment_around_a_line() {
    for len in [0, 1, 63, 64, 65, 4095, 4096, 4097, 10_000] {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (5, 63)] {
            let src = noise(len as u64, len + 128);
            let mut dst = vec![0x77; len + 128];
            // SAFETY: two buffers with room for `len` bytes at these offsets.
            unsafe { copy_streaming(dst[to..].as_mut_ptr(), src[from..].as_ptr(), len) };
            assert!(compare(&dst[to..][..len], &src[from..][..len]), "{len} bytes from {from} to {to}");
            assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0x77), "{len} bytes: wrote beyond");
        }
    }
}

#[test]
fn a_single_set_bit_is_not_zero() {
    for len in [0usize, 1, 255, 256, 257, 4096] {
        let mut bytes = vec![0; len];
        assert!(is_zero(&bytes));
        for at in 0..len {
            bytes[at] = 1 << (at % 8);
            assert!(!is_zero(&bytes), "bit at byte {at} of {len}");
            bytes[at] = 0;
        }
    }
}
