//! Resource names, made and taken apart in one place.

use std::fmt;

/// A resource's name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// `arrays/ARRAY`.
    Array(String),
    /// `arrays/ARRAY/members/NUMBER`.
    Member(String, u16),
    /// `arrays/ARRAY/volumes/VOLUME`.
    Volume(String, String),
    /// `exports/NQN/namespaces/NSID`.
    Export(String, u32),
    /// `operations/ID`.
    Operation(String),
    /// `faults/NUMBER`.
    Fault(u64),
}

impl Name {
    /// Takes a resource name apart; `None` if it is none.
    pub fn parse(name: &str) -> Option<Name> {
        let parts: Vec<&str> = name.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return None;
        }
        Some(match *parts.as_slice() {
            ["arrays", array] => Name::Array(array.into()),
            ["arrays", array, "members", number] => Name::Member(array.into(), decimal(number)?),
            ["arrays", array, "volumes", volume] => Name::Volume(array.into(), volume.into()),
            ["exports", nqn, "namespaces", nsid] => Name::Export(nqn.into(), decimal(nsid)?),
            ["operations", id] => Name::Operation(id.into()),
            ["faults", number] => Name::Fault(decimal(number)?),
            _ => return None,
        })
    }

    /// The array that the resource belongs to.
    pub fn array(&self) -> Option<&str> {
        match self {
            Name::Array(array) | Name::Member(array, _) | Name::Volume(array, _) => Some(array),
            _ => None,
        }
    }
}

/// A number in its one decimal form: two names for one resource would defeat comparison.
fn decimal<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|n| n.to_string() == text)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Array(array) => write!(f, "arrays/{array}"),
            Name::Member(array, number) => write!(f, "arrays/{array}/members/{number}"),
            Name::Volume(array, volume) => write!(f, "arrays/{array}/volumes/{volume}"),
            Name::Export(nqn, nsid) => write!(f, "exports/{nqn}/namespaces/{nsid}"),
            Name::Operation(id) => write!(f, "operations/{id}"),
            Name::Fault(number) => write!(f, "faults/{number}"),
        }
    }
}

/// Checks the name that an array or volume is to have: 1 to 64 letters, digits, `.`, `_`, `-`, the first a letter or digit.
/// The error is a sentence.
pub fn check_id(what: &str, id: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=64).contains(&id.len()) && id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "'{id}' cannot be the name of {what}; choose 1 to 64 letters, digits, '.', '_' and '-' that begin with a letter or digit"
    ))
}

/// Checks an NVMe Qualified Name (NVMe Base 2.1, section 4.7): `nqn.YYYY-MM.REVERSED.DOMAIN[:STRING]`, at most 223 bytes,
/// and without `/`, which resource names need. The error is a sentence.
pub fn check_nqn(nqn: &str) -> Result<(), String> {
    const FORM: &str = "an NQN looks like nqn.2026-01.org.example:name, or nqn.2014-08.org.nvmexpress:uuid:UUID";
    let wrong = |why: &str| Err(format!("'{nqn}' is not an NVMe Qualified Name: {why}; {FORM}"));
    if nqn.len() > 223 {
        return wrong("it is longer than 223 bytes");
    }
    if nqn.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
        return wrong("it holds a space, a control character or a slash");
    }
    let Some(rest) = nqn.strip_prefix("nqn.") else { return wrong("it does not begin with 'nqn.'") };
    let bytes = rest.as_bytes();
    let digits = |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|d| d.iter().all(u8::is_ascii_digit));
    let month = rest.get(5..7).and_then(|m| m.parse::<u8>().ok());
    let date = digits(0..4) && bytes.get(4) == Some(&b'-') && digits(5..7) && bytes.get(7) == Some(&b'.');
    if !date || !month.is_some_and(|m| (1..=12).contains(&m)) {
        return wrong("'nqn.' is not followed by a year and a month");
    }
    let domain = rest[8..].split(':').next().unwrap_or("");
    let label = |l: &str| !l.is_empty() && l.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !domain.split('.').all(label) {
        return wrong("no reversed domain follows the date");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for text in [
            "arrays/pool",
            "arrays/pool/members/3",
            "arrays/pool/volumes/data",
            "exports/nqn.2026-01.org.example:a/namespaces/1",
            "operations/pool-7",
            "faults/12",
        ] {
            assert_eq!(Name::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "pool",
            "arrays",
            "arrays/",
            "arrays//members/1",
            "arrays/a/members/x",
            "arrays/a/members/01",
            "arrays/a/members/70000",
            "arrays/a/members/+1",
            "arrays/a/volumes/v/x",
            "exports/n/namespaces/-1",
        ] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ids() {
        for good in ["a", "7", "pool-1.x_y", &"a".repeat(64)] {
            assert_eq!(check_id("an array", good), Ok(()));
        }
        for bad in ["", "-a", ".", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(check_id("an array", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nqns() {
        for good in [
            "nqn.2026-01.org.example:pool",
            "nqn.2014-08.org.nvmexpress:uuid:6a2f5a4e-1b0c-4a76-9a35-8f3c0f7f2a11",
            "nqn.2014-08.org.nvmexpress.discovery",
            "nqn.2026-12.io",
        ] {
            assert_eq!(check_nqn(good), Ok(()));
        }
        let long = format!("nqn.2026-01.org.example:{}", "a".repeat(223));
        for bad in [
            "",
            "nqn",
            "nqn.",
            "iqn.2026-01.org.example:a",
            "nqn.2026-13.org.example:a",
            "nqn.2026-1.org.example:a",
            "nqn.2026-01.:a",
            "nqn.2026-01.org..x",
            "nqn.2026-01.org.example:a b",
            "nqn.2026-01.org.example:a/b",
            "nqn.2026-01ä",
            &long,
        ] {
            let message = check_nqn(bad).expect_err(bad);
            assert!(message.contains("nqn.2026-01.org.example:name"), "{message}");
        }
    }
}
