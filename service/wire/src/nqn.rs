//! NVMe Qualified Names (Base 4.7).

use thiserror::Error;

/// The discovery subsystem's well-known name (Base 4.7).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The prefix of names that are made of a UUID.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
/// Bytes of a name at most; a field of 256 bytes holds it with its NUL.
pub const MAX_LEN: usize = 223;

/// Why a name is not an NQN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NqnError {
    /// No NUL in the field.
    #[error("the NQN field has no terminating NUL byte")]
    NotTerminated,
    /// The name is empty.
    #[error("the NQN is empty; give a name such as nqn.2026-01.org.example:array0")]
    Empty,
    /// More than 223 bytes.
    #[error("the NQN has {0} bytes, but at most {MAX_LEN} are allowed")]
    TooLong(usize),
    /// Not UTF-8, or with control characters.
    #[error("the NQN is not printable UTF-8")]
    NotUtf8,
    /// Neither `nqn.yyyy-mm.reverse.domain[:name]` nor `nqn.2014-08.org.nvmexpress:uuid:UUID`.
    #[error("the NQN does not have the form nqn.yyyy-mm.reverse.domain:name, such as nqn.2026-01.org.example:array0")]
    Format,
}

/// Checks a name: 1 to 223 bytes of printable UTF-8, `nqn.yyyy-mm.` and a domain, or the UUID form.
pub fn check(name: &str) -> Result<(), NqnError> {
    if name.is_empty() {
        return Err(NqnError::Empty);
    }
    if name.len() > MAX_LEN {
        return Err(NqnError::TooLong(name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(NqnError::NotUtf8);
    }
    if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
        return if is_uuid(uuid) { Ok(()) } else { Err(NqnError::Format) };
    }
    let rest = name.strip_prefix("nqn.").ok_or(NqnError::Format)?.as_bytes();
    let date_ok = rest.len() > 8
        && rest[..4].iter().all(u8::is_ascii_digit)
        && rest[4] == b'-'
        && matches!(&rest[5..7], [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2'])
        && rest[7] == b'.';
    if !date_ok {
        return Err(NqnError::Format);
    }
    let domain = rest[8..].split(|&b| b == b':').next().unwrap_or_default();
    if domain.is_empty() || domain[0] == b'.' { Err(NqnError::Format) } else { Ok(()) }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// The name in a NUL-terminated field of 256 bytes, checked.
pub fn from_field(field: &[u8; 256]) -> Result<&str, NqnError> {
    let end = field.iter().position(|&b| b == 0).ok_or(NqnError::NotTerminated)?;
    let name = std::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotUtf8)?;
    check(name)?;
    Ok(name)
}

/// The name as a NUL-terminated field of 256 bytes, the rest zero. A name over 255 bytes is cut.
pub fn to_field(name: &str) -> [u8; 256] {
    let mut field = [0; 256];
    let len = name.len().min(255);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
    field
}
