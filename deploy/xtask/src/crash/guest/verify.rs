//! The checker: each file against what was promised of it. A line for each: `ok PATH BYTES HASH` or `bad PATH TEXT`.

use std::path::Path;
use std::process::Command;

use crate::crash::content::{self, SECTOR};
use crate::crash::ledger::{Entry, Kind, Ledger};

/// Checks all files of the ledger. What is broken is told on the output; an error is one of the checker's own.
pub fn run(seed: u64, ledger: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(ledger).map_err(|e| format!("{}: {e}", ledger.display()))?;
    for (path, entry) in &Ledger::parse(&text)?.files {
        match check(content::key(seed, path), path, entry) {
            Ok((bytes, hash)) => println!("ok {path} {bytes} {hash}"),
            Err(e) => println!("bad {path} {e}"),
        }
    }
    Ok(())
}

fn check(key: u64, path: &str, entry: &Entry) -> Result<(u64, u64), String> {
    if let Kind::Sqlite(kept, begun) = entry.kind {
        return sqlite(key, path, kept, begun);
    }
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(format!("cannot be read: {e}")),
    };
    match &entry.kind {
        Kind::Append(kept, begun) => append(key, &bytes, *kept, *begun),
        Kind::InPlace(sectors, records) => in_place(key, &bytes, *sectors, records),
        Kind::Replace(kept, begun) => replace(key, &bytes, *kept, *begun),
        Kind::Sqlite(..) => Ok(()),
    }?;
    let hash = content::hash(&bytes);
    if entry.settled.is_some_and(|settled| settled != hash) {
        return Err("is not what it was at the check before, and nobody has written it since".to_string());
    }
    Ok((bytes.len() as u64, hash))
}

/// What was synced is there. Behind it there is what was written, or zeros where its blocks had not arrived: never
/// what somebody else had written there.
fn append(key: u64, bytes: &[u8], kept: u64, begun: u64) -> Result<(), String> {
    let len = bytes.len() as u64;
    if len < kept || len > begun {
        return Err(format!("has {len} bytes; {kept} were promised and {begun} written"));
    }
    let mut expected = vec![0; bytes.len()];
    content::fill(key, 0, &mut expected);
    let (promised, tail) = bytes.split_at(kept as usize);
    if let Some(at) = promised.iter().zip(&expected).position(|(a, b)| a != b) {
        return Err(format!("byte {at} of {kept} promised ones is wrong"));
    }
    let wrong = tail.iter().zip(&expected[kept as usize..]).position(|(a, b)| a != b && *a != 0);
    match wrong {
        None => Ok(()),
        Some(at) => Err(format!("byte {} was never written so ({kept} were promised)", kept as usize + at)),
    }
}

/// Each sector has a version between the one that was promised and the last that was begun.
fn in_place(key: u64, bytes: &[u8], sectors: u64, records: &[(u64, u64)]) -> Result<(), String> {
    for (record, (kept, begun)) in records.iter().enumerate() {
        for number in record as u64 * sectors..(record as u64 + 1) * sectors {
            let at = number as usize * SECTOR;
            let place = format!("sector {number} (record {record})");
            let Some(sector) = bytes.get(at..at + SECTOR) else {
                if *kept == 0 {
                    continue;
                }
                return Err(format!("{place} is missing; version {kept} was promised"));
            };
            match content::version(key, number, sector) {
                None => return Err(format!("{place} has never been written so; version {kept} was promised")),
                Some(v) if v < *kept || v > *begun => {
                    return Err(format!("{place} has version {v}; {kept} was promised and {begun} begun"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// One version, whole.
fn replace(key: u64, bytes: &[u8], kept: u64, begun: u64) -> Result<(), String> {
    let version = match bytes.get(..8) {
        Some(head) => head.try_into().map_or(0, u64::from_le_bytes),
        None if bytes.is_empty() => 0,
        None => return Err(format!("has {} bytes; version {kept} was promised", bytes.len())),
    };
    if version < kept || version > begun {
        return Err(format!("has version {version}; {kept} was promised and {begun} begun"));
    }
    if version > 0 && bytes != content::whole(key, version) {
        return Err(format!("version {version} is not whole"));
    }
    Ok(())
}

/// The database is sound, has every row that was committed, and each transaction as a whole. The hash is the row count.
fn sqlite(key: u64, path: &str, kept: u64, begun: u64) -> Result<(u64, u64), String> {
    let Ok(meta) = std::fs::metadata(path) else {
        return if kept == 0 { Ok((0, 0)) } else { Err(format!("is missing; {kept} rows were promised")) };
    };
    // The tables are made by the first transactions; before the first promise they may not be there.
    if kept == 0 && begun == 0 {
        return Ok((meta.len(), 0));
    }
    let output = Command::new("sqlite3")
        .args(["-bail", "-batch", "-separator", " ", path])
        .arg("PRAGMA integrity_check; SELECT 'n', coalesce(max(n),0) FROM c; SELECT id, v FROM t ORDER BY id;")
        .output()
        .map_err(|e| format!("sqlite3 cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let sound = lines.next().unwrap_or("");
    if sound != "ok" || !output.status.success() {
        return Err(format!("integrity_check says '{sound}' {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let counter = lines.next().unwrap_or("").to_string();
    let mut rows = 0;
    for line in lines {
        rows += 1;
        if line != format!("{rows} {}", content::row(key, rows)) {
            return Err(format!("row {rows} is missing or wrong; {kept} were promised"));
        }
    }
    if rows < kept || rows > begun {
        return Err(format!("has {rows} rows; {kept} were promised and {begun} begun"));
    }
    if counter != format!("n {rows}") {
        return Err(format!("has {rows} rows and the counter '{counter}': half a transaction"));
    }
    Ok((meta.len(), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_file_may_end_early_but_not_before_the_promise() {
        let mut bytes = vec![0; 3000];
        content::fill(1, 0, &mut bytes);
        assert!(append(1, &bytes, 2000, 5000).is_ok());
        assert!(append(1, &bytes, 3001, 5000).is_err());
        assert!(append(1, &bytes, 2000, 2999).is_err());
        bytes[2500] = 0;
        assert!(append(1, &bytes, 2000, 5000).is_ok());
        assert!(append(1, &bytes, 2501, 5000).is_err());
        bytes[2500] = 0x5A;
        assert!(append(1, &bytes, 2000, 5000).is_err());
    }

    #[test]
    fn a_record_may_be_torn_between_versions_that_were_begun_only() {
        let record = |versions: &[u64]| -> Vec<u8> {
            versions.iter().enumerate().flat_map(|(i, v)| content::sector(1, *v, i as u64)).collect()
        };
        let torn = record(&[3, 5, 4, 3]);
        assert!(in_place(1, &torn, 4, &[(3, 5)]).is_ok());
        assert!(in_place(1, &torn, 2, &[(3, 5), (3, 4)]).is_ok());
        assert!(in_place(1, &torn, 4, &[(4, 5)]).is_err(), "a sector is older than the promise");
        assert!(in_place(1, &torn, 4, &[(3, 4)]).is_err(), "a sector is from nowhere");
        assert!(in_place(1, &torn[..1024], 2, &[(3, 5), (0, 1)]).is_ok());
        assert!(in_place(1, &torn[..1024], 2, &[(3, 5), (1, 1)]).is_err());
        let mut damaged = torn.clone();
        damaged[700] ^= 1;
        assert!(in_place(1, &damaged, 4, &[(3, 5)]).is_err());
    }

    #[test]
    fn a_replaced_file_is_whole() {
        let bytes = content::whole(1, 4);
        assert!(replace(1, &bytes, 3, 4).is_ok());
        assert!(replace(1, &bytes, 5, 6).is_err());
        assert!(replace(1, &bytes[..bytes.len() - 1], 3, 4).is_err());
        assert!(replace(1, &[], 0, 1).is_ok());
        assert!(replace(1, &[], 1, 1).is_err());
    }
}
