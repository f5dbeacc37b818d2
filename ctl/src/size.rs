//! Sizes with IEC units, in and out.

/// Units by their power of 1024.
const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Reads a size in bytes: `512`, `4K`, `64KiB`, `1GiB`, `1.5G`. `K` and `KiB` are both 1024 bytes. A fraction must come out
/// at whole bytes. Decimal units (`kB`, `GB`) are refused, because one cannot know what was meant.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |d: &str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || (number.contains('.') && !digits(fraction)) || fraction.len() > 12 {
        return Err(format!("'{text}' is not a size; write it like 512, 4K, 64KiB or 1.5GiB"));
    }
    let lower = unit.to_ascii_lowercase();
    let power = match lower.as_str() {
        "" | "b" => 0,
        "k" | "kib" => 1,
        "m" | "mib" => 2,
        "g" | "gib" => 3,
        "t" | "tib" => 4,
        "p" | "pib" => 5,
        "e" | "eib" => 6,
        "kb" | "mb" | "gb" | "tb" | "pb" | "eb" => {
            let letter = lower[..1].to_ascii_uppercase();
            return Err(format!("'{unit}' is ambiguous; write {letter}iB for powers of 1024, or the size in bytes"));
        }
        _ => return Err(format!("'{unit}' is not a unit of size; use B, KiB, MiB, GiB, TiB, PiB or EiB")),
    };
    let too_large = || format!("'{text}' is more than the 16 EiB that can be addressed");
    let bytes_per_unit = 1u128 << (10 * power);
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let scale = 10u128.pow(fraction.len() as u32);
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u128>().map_err(|_| too_large())? };
    let part = part * bytes_per_unit;
    if !part.is_multiple_of(scale) {
        return Err(format!("'{text}' is not a whole number of bytes; use a smaller unit"));
    }
    let bytes = whole.checked_mul(bytes_per_unit).and_then(|b| b.checked_add(part / scale)).ok_or_else(too_large)?;
    u64::try_from(bytes).map_err(|_| too_large())
}

/// [`parse`] for sizes that cannot be nothing.
pub fn parse_positive(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("a size of nothing is not possible here".into()),
        bytes => Ok(bytes),
    }
}

/// Writes a size with the largest unit below it, exactly or with one decimal.
pub fn show(bytes: u64) -> String {
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        format!("{} {}", bytes / unit, UNITS[power])
    } else {
        format!("{:.1} {}", bytes as f64 / unit as f64, UNITS[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_size() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4K", 4096),
            ("4k", 4096),
            ("64KiB", 65536),
            ("64 kib", 65536),
            ("1GiB", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.25T", 1 << 38),
            ("2.50MiB", 5 << 19),
            ("15EiB", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_none() {
        for (text, word) in [
            ("", "not a size"),
            ("-1", "not a size"),
            ("K", "not a size"),
            (".5G", "not a size"),
            ("1.G", "not a size"),
            ("1.2.3", "not a size"),
            ("1e9", "unit"),
            ("0x10", "unit"),
            ("4GB", "GiB"),
            ("4kb", "KiB"),
            ("1.5", "whole number"),
            ("1.1G", "whole number"),
            ("16EiB", "16 EiB"),
            ("18446744073709551616", "16 EiB"),
            ("999999999999999999999999999999999999999999", "16 EiB"),
            ("4 lightyears", "unit"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(word), "{text}: {message}");
        }
        assert!(parse_positive("0").is_err());
    }

    #[test]
    fn shown_sizes_come_back() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
            (3 << 29, "1.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show(bytes), shown);
        }
        for bytes in [1, 512, 4096, 64 << 10, 1 << 30, 700 << 20] {
            assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
    }
}
