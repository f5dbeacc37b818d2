//! Sizes and times as people write them.

use std::time::Duration;

/// Parses a size: bytes, or with an IEC suffix (`4k`, `64KiB`, `1M`, `2GiB`). All suffixes are powers of 1024.
///
/// # Errors
///
/// If the text is not a number with a known suffix, or the size does not fit in 64 bits.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("{text:?} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size; write bytes, or a number with KiB, MiB or GiB"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 64 bits hold"))
}

/// Parses a time in seconds, with a fraction if need be (`5`, `0.5`, `5s`, `200ms`, `2m`).
///
/// # Errors
///
/// If the text is not a number that is zero or more, with a known suffix.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; write seconds, or a number with ms, s or m");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor = match suffix.trim() {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())
}

/// A size with the largest IEC unit that divides it.
pub fn show_size(bytes: u64) -> String {
    let (mut n, mut unit) = (bytes, 0);
    while n != 0 && n % 1024 == 0 && unit < 4 {
        n /= 1024;
        unit += 1;
    }
    format!("{n} {}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("1 MiB"), Ok(1 << 20));
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        for wrong in ["", "k", "4x", "-1", "1.5k", "99999999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_shown_as_they_are_read() {
        for bytes in [0, 1, 512, 4096, 5000, 1 << 30, 3 << 40] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_time("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("200ms"), Ok(Duration::from_millis(200)));
        for wrong in ["", "s", "-1", "1h", "1e400"] {
            assert!(parse_time(wrong).is_err(), "{wrong:?}");
        }
    }
}
