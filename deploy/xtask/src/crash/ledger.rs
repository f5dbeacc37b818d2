//! What the guest was promised: for each file what a completed fsync covers (`kept`), and how far writes had begun, which
//! may be there or not. It lives on the host, and the guest's checker gets it as text.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A file's kind and how far it is. Numbers are pairs: kept, begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows: lengths in bytes.
    Append(u64, u64),
    /// Records of so many sectors, overwritten in place: versions by record.
    InPlace(u64, Vec<(u64, u64)>),
    /// Replaced as a whole by a rename: versions.
    Replace(u64, u64),
    /// A database: rows.
    Sqlite(u64, u64),
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// What it was when it was checked first; it is not written any more and must stay that.
    pub settled: Option<u64>,
}

impl Entry {
    /// Something was promised of it.
    fn promised(&self) -> bool {
        match &self.kind {
            Kind::Append(kept, _) | Kind::Replace(kept, _) | Kind::Sqlite(kept, _) => *kept > 0,
            Kind::InPlace(_, records) => records.iter().any(|(kept, _)| *kept > 0),
        }
    }

    /// Writes begun and not promised.
    fn under_way(&self) -> usize {
        match &self.kind {
            Kind::Append(kept, begun) | Kind::Replace(kept, begun) | Kind::Sqlite(kept, begun) => {
                usize::from(begun > kept)
            }
            Kind::InPlace(_, records) => records.iter().filter(|(kept, begun)| begun > kept).count(),
        }
    }
}

/// All files by path.
#[derive(Debug, Default)]
pub struct Ledger {
    pub files: BTreeMap<String, Entry>,
    /// Promises received.
    pub promises: u64,
    /// What the load's writers ended with.
    pub errors: Vec<String>,
}

fn number(text: Option<&str>) -> Result<u64, String> {
    text.and_then(|t| t.parse().ok()).ok_or_else(|| "a number is missing".to_string())
}

impl Ledger {
    /// Takes a line of the load: `file PATH KIND [SECTORS RECORDS]`, `begin PATH N [VERSION]`, `kept PATH N [VERSION]`,
    /// `made PATH VERSION` or `error PATH TEXT`.
    pub fn line(&mut self, line: &str) -> Result<(), String> {
        let bad = |what: &str| format!("the load sent '{line}': {what}");
        let mut words = line.split(' ');
        let (Some(verb), Some(path)) = (words.next(), words.next()) else { return Err(bad("too short")) };
        match verb {
            "error" => {
                self.errors.push(format!("{path}: {}", words.collect::<Vec<_>>().join(" ")));
                return Ok(());
            }
            "file" => {
                let kind = match words.next() {
                    Some("append") => Kind::Append(0, 0),
                    Some("replace") => Kind::Replace(0, 0),
                    // A database is gone on with: what was promised stays promised.
                    Some("sqlite") if self.files.contains_key(path) => return Ok(()),
                    Some("sqlite") => Kind::Sqlite(0, 0),
                    Some("inplace") => {
                        let sectors = number(words.next())?;
                        // The first version of all of them is on its way.
                        Kind::InPlace(sectors, vec![(0, 1); number(words.next())? as usize])
                    }
                    _ => return Err(bad("no such kind")),
                };
                self.files.insert(path.to_string(), Entry { kind, settled: None });
                return Ok(());
            }
            _ => {}
        }
        let kept = match verb {
            "begin" => false,
            "kept" => true,
            "made" => {
                // All records have their first version.
                let version = number(words.next())?;
                let entry = self.files.get_mut(path).ok_or_else(|| bad("no such file"))?;
                let Kind::InPlace(_, records) = &mut entry.kind else { return Err(bad("no records")) };
                records.fill((version, version));
                self.promises += 1;
                return Ok(());
            }
            _ => return Err(bad("no such word")),
        };
        let entry = self.files.get_mut(path).ok_or_else(|| bad("no such file"))?;
        let first = number(words.next())?;
        let (pair, value) = match &mut entry.kind {
            Kind::Append(kept, begun) | Kind::Replace(kept, begun) | Kind::Sqlite(kept, begun) => {
                ((kept, begun), first)
            }
            Kind::InPlace(_, records) => {
                let (kept, begun) = records.get_mut(first as usize).ok_or_else(|| bad("no such record"))?;
                ((kept, begun), number(words.next())?)
            }
        };
        if kept {
            *pair.0 = value;
            self.promises += 1;
        } else {
            *pair.1 = value;
        }
        Ok(())
    }

    /// Writes that had begun and were not promised.
    pub fn under_way(&self) -> usize {
        self.files.values().map(Entry::under_way).sum()
    }

    /// Files of which something was promised.
    pub fn promised(&self) -> usize {
        self.files.values().filter(|e| e.promised()).count()
    }

    /// Forgets the files below a folder, before they are deleted.
    pub fn forget(&mut self, folder: &str) {
        self.files.retain(|path, _| !path.starts_with(folder));
    }

    /// For the checker: a line for each file, `KIND PATH SETTLED NUMBERS...`.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (path, entry) in &self.files {
            let settled = entry.settled.map_or_else(|| "-".to_string(), |hash| hash.to_string());
            let _ = match &entry.kind {
                Kind::Append(kept, begun) => writeln!(out, "append {path} {settled} {kept} {begun}"),
                Kind::Replace(kept, begun) => writeln!(out, "replace {path} {settled} {kept} {begun}"),
                Kind::Sqlite(kept, begun) => writeln!(out, "sqlite {path} - {kept} {begun}"),
                Kind::InPlace(sectors, records) => {
                    let list: Vec<String> = records.iter().map(|(kept, begun)| format!("{kept} {begun}")).collect();
                    writeln!(out, "inplace {path} {settled} {sectors} {}", list.join(" "))
                }
            };
        }
        out
    }

    /// The checker's side of [`Ledger::text`].
    pub fn parse(text: &str) -> Result<Ledger, String> {
        let mut ledger = Ledger::default();
        for line in text.lines() {
            let bad = || format!("the ledger's line '{line}' is broken");
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, path, settled, numbers @ ..] = words.as_slice() else { return Err(bad()) };
            let numbers: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
            let kind = match (*kind, numbers.as_slice()) {
                ("append", [kept, begun]) => Kind::Append(*kept, *begun),
                ("replace", [kept, begun]) => Kind::Replace(*kept, *begun),
                ("sqlite", [kept, begun]) => Kind::Sqlite(*kept, *begun),
                ("inplace", [sectors, records @ ..]) => {
                    Kind::InPlace(*sectors, records.chunks_exact(2).map(|p| (p[0], p[1])).collect())
                }
                _ => return Err(bad()),
            };
            ledger.files.insert(path.to_string(), Entry { kind, settled: settled.parse().ok() });
        }
        Ok(ledger)
    }

    /// Takes the checker's findings, `ok PATH BYTES HASH` or `bad PATH TEXT`, one for each file. Whatever a file was found
    /// to be, it must stay.
    pub fn checked(&mut self, findings: &str) -> Result<Checked, String> {
        let mut sum = Checked::default();
        let mut bad = Vec::new();
        let mut seen = 0;
        for line in findings.lines() {
            let mut words = line.splitn(3, ' ');
            let (verb, path, rest) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or(""));
            let Some(entry) = self.files.get_mut(path) else {
                bad.push(line.to_string());
                continue;
            };
            seen += 1;
            let numbers: Vec<u64> = rest.split(' ').filter_map(|n| n.parse().ok()).collect();
            let (Some("ok"), [bytes, hash]) = (verb, numbers.as_slice()) else {
                bad.push(format!("{path}: {rest}"));
                continue;
            };
            sum.files += 1;
            sum.bytes += bytes;
            match &mut entry.kind {
                Kind::Sqlite(kept, begun) => {
                    (*kept, *begun) = (*hash, *hash);
                    sum.databases += 1;
                    sum.rows += *hash;
                }
                _ => entry.settled = Some(*hash),
            }
        }
        if !bad.is_empty() {
            let more = if bad.len() > 20 { format!("\n  and {} more", bad.len() - 20) } else { String::new() };
            bad.truncate(20);
            return Err(format!("promises were broken:\n  {}{more}", bad.join("\n  ")));
        }
        if seen != self.files.len() {
            return Err(format!("the checker looked at {seen} of {} files", self.files.len()));
        }
        Ok(sum)
    }
}

/// Sums of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub files: usize,
    pub bytes: u64,
    pub databases: usize,
    pub rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_go_to_the_checker_and_findings_come_back() {
        let mut ledger = Ledger::default();
        for line in [
            "file /a append",
            "begin /a 100",
            "kept /a 100",
            "begin /a 250",
            "file /b inplace 8 3",
            "made /b 1",
            "begin /b 2 7",
            "kept /b 2 6",
            "file /c replace",
            "file /d sqlite",
            "begin /d 4",
            "kept /d 4",
            "error /a Input/output error (os error 5)",
        ] {
            ledger.line(line).unwrap();
        }
        assert_eq!((ledger.promises, ledger.under_way(), ledger.promised()), (4, 2, 3));
        assert_eq!(ledger.errors, ["/a: Input/output error (os error 5)"]);
        let parsed = Ledger::parse(&ledger.text()).unwrap();
        assert_eq!(parsed.files, ledger.files);
        assert!(ledger.line("kept /nowhere 1").is_err());
        assert!(ledger.line("kept /b 3 1").is_err());
        let sum = ledger.checked("ok /a 120 55\nok /b 12288 56\nok /c 0 0\nok /d 900 5").unwrap();
        assert_eq!(sum, Checked { files: 4, bytes: 13308, databases: 1, rows: 5 });
        assert!(ledger.text().contains("append /a 55 100 250"));
        assert_eq!(ledger.files["/d"].kind, Kind::Sqlite(5, 5), "a row that was seen must stay");
        assert!(ledger.checked("ok /a 120 55").is_err_and(|e| e.contains("1 of 4")));
        assert!(ledger.checked("bad /a byte 7 is wrong").is_err_and(|e| e.contains("byte 7")));
        ledger.forget("/a");
        assert_eq!(ledger.files.len(), 3);
    }
}
