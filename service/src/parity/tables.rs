//! The coefficients in the forms that the kernels multiply by, computed at build time.

use raid_core::gf::mul;

/// For each coefficient its products with 0..16, and with the multiples of 16: the product of any byte is the sum of
/// two look-ups, one by its low nibble and one by its high one. Aligned so that a table never straddles a cache line.
#[repr(C, align(64))]
pub(super) struct Nibbles(pub [[u8; 32]; 256]);

/// See [`Nibbles`]. 8 KiB.
pub(super) static NIBBLES: Nibbles = Nibbles(nibbles());

const fn nibbles() -> [[u8; 32]; 256] {
    let mut out = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut i = 0;
        while i < 16 {
            out[c][i] = mul(c as u8, i as u8);
            out[c][16 + i] = mul(c as u8, (i as u8) << 4);
            i += 1;
        }
        c += 1;
    }
    out
}

/// For each coefficient the bit matrix of the multiplication, as `gf2p8affineqb` wants it: bit i of a product is the
/// parity of the operand and byte 7-i of the matrix. (`gf2p8mulb` is no help: its field is modulo 11Bh.) 2 KiB.
pub(super) static MATRICES: [u64; 256] = matrices();

const fn matrices() -> [u64; 256] {
    let mut out = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut matrix = 0u64;
        let mut column = 0;
        while column < 8 {
            let image = mul(c as u8, 1 << column);
            let mut row = 0;
            while row < 8 {
                if image >> row & 1 != 0 {
                    matrix |= 1 << (8 * (7 - row) + column);
                }
                row += 1;
            }
            column += 1;
        }
        out[c] = matrix;
        c += 1;
    }
    out
}
