//! NVMe and NVMe-oF structures with the specification's names: PDUs, commands, completions, identify data, log pages.
//!
//! The host side (`raidbench`, the daemon's demo, a drive's driver) and the controller side (the NVMe/TCP target) use the
//! same definitions. Every structure is a plain view of bytes: little-endian fields, alignment 1, and its size and the
//! offsets of its fields are asserted at compile time. Parsing never allocates and never panics.
//!
//! Section numbers name the NVM Express Base Specification 2.1 ("Base"), the NVM Command Set Specification 1.1 ("NVM")
//! and the NVMe over TCP Transport Specification 1.1 ("TCP").
#![forbid(unsafe_code)]

pub mod command;
pub mod fabrics;
pub mod features;
pub mod host;
pub mod identify;
pub mod logs;
pub mod nqn;
pub mod tcp;
#[cfg(test)]
mod tests;

/// The byte-view traits (`FromBytes`, `IntoBytes`) and little-endian integers that all structures are made of.
pub use zerocopy;

/// Makes the value of a fixed-width text field: ASCII, left-justified, padded with spaces, cut when too long.
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (to, from) in out.iter_mut().zip(text.bytes()) {
        *to = if (0x20..0x7f).contains(&from) { from } else { b'?' };
    }
    out
}

/// The text of a fixed-width field, without the spaces or zero bytes that pad it. Empty if it is not UTF-8.
pub fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).unwrap_or("").trim_end_matches(' ')
}

/// Asserts a structure's size and the offsets of its fields at compile time.
macro_rules! layout {
    ($type:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == 1);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
