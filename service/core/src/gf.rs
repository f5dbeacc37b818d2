//! The field GF(2^8) modulo 11Dh, and what it takes to get lost columns of a stripe back.
//!
//! Data column `d` adds itself to P and `g^d` times itself to Q, with g = 2. Columns are numbered 0 to D-1 for data,
//! D for P and D+1 for Q; sets of columns are bit masks by that number.

/// The field's polynomial, x^8 + x^4 + x^3 + x^2 + 1, the one of md and of SPDK.
pub const POLYNOMIAL: u16 = 0x11d;

/// Columns of the widest stripe, parity included.
pub const MAX_COLUMNS: usize = 32;

/// Powers of g = 2, twice over, so that a sum of two logarithms needs no reduction.
const EXP: [u8; 512] = exp_table();
/// Logarithms to base 2. The entry for zero is meaningless.
const LOG: [u8; 256] = log_table();

const fn exp_table() -> [u8; 512] {
    let mut table = [0; 512];
    let mut x: u16 = 1;
    let mut i = 0;
    while i < 512 {
        table[i] = x as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= POLYNOMIAL;
        }
        i += 1;
    }
    table
}

const fn log_table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// The product.
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[LOG[a as usize] as usize + LOG[b as usize] as usize] }
}

/// The inverse. There is none of zero: panics.
pub const fn inv(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

/// The quotient. Panics when `b` is zero.
pub const fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// g^n with g = 2: the Q coefficient of data column `n`.
pub const fn exp(n: u32) -> u8 {
    EXP[(n % 255) as usize]
}

/// a^n; 0^0 is 1.
pub const fn pow(a: u8, n: u32) -> u8 {
    if n == 0 {
        1
    } else if a == 0 {
        0
    } else {
        EXP[((LOG[a as usize] as u64 * n as u64) % 255) as usize]
    }
}

/// The coefficient with which data column `column` goes into parity `parity` (0 is P, 1 is Q).
pub const fn parity_coef(parity: u16, column: u16) -> u8 {
    if parity == 0 { 1 } else { exp(column as u32) }
}

/// A column as a combination of other columns: `coef[c]` for column `c`, zero where it plays no part.
pub type Coefs = [u8; MAX_COLUMNS];

/// Expresses column `want` through the columns in `have`, for a stripe of `data` data columns. `None` if more data
/// columns are absent from `have` than it holds parities. P is preferred to Q where one of them is enough.
pub fn recover(data: u16, have: u32, want: u16) -> Option<Coefs> {
    let mut coefs = [0; MAX_COLUMNS];
    if have & (1 << want) != 0 {
        coefs[want as usize] = 1;
        return Some(coefs);
    }
    if want < data {
        return recover_data(data, have, want);
    }
    let parity = want - data;
    for column in 0..data {
        let factor = parity_coef(parity, column);
        if have & (1 << column) != 0 {
            coefs[column as usize] ^= factor;
        } else {
            let lost = recover_data(data, have, column)?;
            for (sum, c) in coefs.iter_mut().zip(lost) {
                *sum ^= mul(factor, c);
            }
        }
    }
    Some(coefs)
}

/// [`recover`] for a data column that is not in `have`.
fn recover_data(data: u16, have: u32, want: u16) -> Option<Coefs> {
    let (p, q) = (data as usize, data as usize + 1);
    let has = |column: usize| column < MAX_COLUMNS && have & (1 << column) != 0;
    let mut other = None;
    for column in 0..data {
        if column != want && !has(column as usize) && other.replace(column).is_some() {
            return None;
        }
    }
    let mut coefs = [0; MAX_COLUMNS];
    match other {
        None if has(p) => {
            // want = P + the other data.
            (0..data).filter(|&c| c != want).for_each(|c| coefs[c as usize] = 1);
            coefs[p] = 1;
        }
        None if has(q) => {
            // g^want * want = Q + the other data, each times g^c.
            let scale = inv(exp(want as u32));
            (0..data).filter(|&c| c != want).for_each(|c| coefs[c as usize] = mul(scale, exp(c as u32)));
            coefs[q] = scale;
        }
        Some(other) if has(p) && has(q) => {
            // With A = P + data and B = Q + data * g^c over the columns at hand: want + other = A and
            // g^want * want + g^other * other = B, so want = (B + g^other * A) / (g^want + g^other).
            let (gw, go) = (exp(want as u32), exp(other as u32));
            let scale = inv(gw ^ go);
            for c in (0..data).filter(|&c| c != want && c != other) {
                coefs[c as usize] = mul(scale, exp(c as u32) ^ go);
            }
            coefs[p] = mul(scale, go);
            coefs[q] = scale;
        }
        _ => return None,
    }
    Some(coefs)
}

/// `dst = (accumulate ? dst : 0) + Σ coef * src`, byte by byte: the reference for every kernel. Panics when a source is
/// shorter than the destination.
pub fn combine_scalar(dst: &mut [u8], terms: &[(u8, &[u8])], accumulate: bool) {
    if !accumulate {
        dst.fill(0);
    }
    for &(coef, src) in terms {
        let src = &src[..dst.len()];
        match coef {
            0 => {}
            1 => dst.iter_mut().zip(src).for_each(|(d, s)| *d ^= s),
            _ => {
                let low: [u8; 16] = std::array::from_fn(|i| mul(coef, i as u8));
                let high: [u8; 16] = std::array::from_fn(|i| mul(coef, (i as u8) << 4));
                for (d, s) in dst.iter_mut().zip(src) {
                    *d ^= low[(s & 15) as usize] ^ high[(s >> 4) as usize];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication by shift and add, which shares nothing with the tables.
    fn slow_mul(a: u8, b: u8) -> u8 {
        let (mut a, mut product) = (a as u16, 0u16);
        for bit in 0..8 {
            if b & (1 << bit) != 0 {
                product ^= a;
            }
            a <<= 1;
            if a & 0x100 != 0 {
                a ^= POLYNOMIAL;
            }
        }
        product as u8
    }

    #[test]
    fn tables_agree_with_shift_and_add() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} * {b}");
                if b != 0 {
                    assert_eq!(mul(div(a, b), b), a, "{a} / {b}");
                }
            }
            let mut power = 1;
            for n in 0..600 {
                assert_eq!(pow(a, n), power, "{a}^{n}");
                power = slow_mul(power, a);
            }
        }
        assert_eq!(exp(0), 1);
        assert_eq!(exp(255), 1);
        assert_eq!(exp(8), 0x1d);
    }

    #[test]
    fn every_loss_that_parity_covers_is_recovered() {
        for parities in 1..=2u16 {
            for data in 1..=(MAX_COLUMNS as u16 - parities) {
                let columns = data + parities;
                let mut value = [0u8; MAX_COLUMNS];
                for d in 0..data {
                    value[d as usize] = (d as u8).wrapping_mul(37) ^ 0xa5;
                    for p in 0..parities {
                        value[(data + p) as usize] ^= slow_mul(parity_coef(p, d), value[d as usize]);
                    }
                }
                let all = if columns == 32 { u32::MAX } else { (1 << columns) - 1 };
                for a in 0..columns {
                    for b in a..columns {
                        let have = all & !(1 << a) & !(1 << b);
                        if (32 - have.leading_zeros() == 0) || (all & !have).count_ones() > parities as u32 {
                            continue;
                        }
                        for want in [a, b] {
                            let coefs = recover(data, have, want).expect("covered");
                            let mut sum = 0;
                            for c in 0..columns as usize {
                                assert!(coefs[c] == 0 || have & (1 << c) != 0, "uses a lost column");
                                sum ^= slow_mul(coefs[c], value[c]);
                            }
                            assert_eq!(sum, value[want as usize], "D={data} lost {a},{b} want {want}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn more_losses_than_parities_are_refused() {
        assert!(recover(4, 0b01_1100, 0).is_none(), "two data lost, only P");
        assert!(recover(4, 0b11_1000, 0).is_none(), "three data lost");
        assert!(recover(4, 0b00_1110, 0).is_none(), "no parity");
    }

    #[test]
    fn combination_is_linear() {
        let a: Vec<u8> = (0..=255).collect();
        let b: Vec<u8> = (0..=255).rev().collect();
        let mut dst = vec![7; 256];
        combine_scalar(&mut dst, &[(3, &a), (0, &b), (1, &b)], true);
        for i in 0..256 {
            assert_eq!(dst[i], 7 ^ slow_mul(3, a[i]) ^ b[i]);
        }
        combine_scalar(&mut dst, &[], false);
        assert!(dst.iter().all(|&b| b == 0));
    }
}
