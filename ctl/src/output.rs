//! Printing: tables for people, JSON and YAML for programs.

use std::io::{IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::cli::Format;
use crate::error::{Exit, Failure, Result};
use crate::size::show;
use crate::view::{Array, ArrayDetails, Event, Export, Fault, Member, Operation, Status, Volume};

/// The width that a table keeps to on a terminal that does not say how wide it is.
const WIDTH: u16 = 80;

/// Prints one value: `table` writes it for people.
pub fn print<T: Serialize>(format: Format, value: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
    let text = match format {
        Format::Table => table(value),
        Format::Json => serde_json::to_string_pretty(value).map_err(unprintable)? + "\n",
        Format::Yaml => serde_norway::to_string(value).map_err(unprintable)?,
    };
    write(&text)
}

/// Prints one value of a stream, at once.
pub fn print_item<T: Serialize>(format: Format, value: &T, line: impl FnOnce(&T) -> String) -> Result<()> {
    let text = match format {
        Format::Table => line(value) + "\n",
        Format::Json => serde_json::to_string(value).map_err(unprintable)? + "\n",
        Format::Yaml => format!("---\n{}", serde_norway::to_string(value).map_err(unprintable)?),
    };
    write(&text)
}

fn unprintable(e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Other, format!("the answer could not be printed: {e}"))
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe has seen enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// The width to keep to: the terminal's, if it is one; none for files and pipes, where a line is a record.
fn width() -> Option<u16> {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).filter(|c| *c >= 40);
    let terminal = || {
        let term = console::Term::stdout();
        std::io::stdout().is_terminal().then(|| term.size_checked().map_or(WIDTH, |(_, columns)| columns.max(40)))
    };
    columns.or_else(terminal)
}

/// A table without lines; the columns in `numbers` are right-aligned.
fn table(head: &[&str], numbers: &[usize], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    match width {
        Some(width) => table.set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table.set_header(head.to_vec());
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out: String = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    if out.is_empty() {
        out.push('\n');
    }
    out
}

/// Names and values, one a line, the names padded to one width.
fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 3;
    pairs
        .iter()
        .map(|(name, value)| format!("{:<width$}{value}", format!("{name}:")).trim_end().to_owned() + "\n")
        .collect()
}

/// A number of things.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A state that is not as it should be never stands without its reason: one line for each, below the table.
fn reasons<'a>(all: impl Iterator<Item = (String, &'a str, &'a str)>) -> String {
    let wrong = all.filter(|(_, state, reason)| {
        !matches!(*state, "healthy" | "active" | "spare" | "succeeded" | "running") && !reason.is_empty()
    });
    let lines: String = wrong.map(|(what, state, reason)| format!("{what} is {state}: {reason}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// A time in the two largest units, as `90 s` or `2 h 5 min`.
fn time(time: std::time::Duration) -> String {
    match time.as_secs_f64().round() as u64 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

fn none(what: &str) -> String {
    format!("no {what}\n")
}

/// A list of arrays.
pub fn arrays(list: &[Array]) -> String {
    arrays_at(list, width()) + &reasons(list.iter().map(|a| (format!("array {}", a.name), &*a.state, &*a.reason)))
}

fn arrays_at(list: &[Array], width: Option<u16>) -> String {
    if list.is_empty() {
        return none("arrays");
    }
    let rows = list.iter().map(|a| {
        let mut members = a.active_members.to_string();
        if a.spare_members > 0 {
            members += &format!(" + {} spare", a.spare_members);
        }
        if a.failed_members > 0 {
            members += &format!(", {} failed", a.failed_members);
        }
        vec![
            a.name.clone(),
            a.state.clone(),
            members,
            a.volumes.to_string(),
            show(a.free_bytes),
            show(a.capacity_bytes),
        ]
    });
    table(&["NAME", "STATE", "MEMBERS", "VOLUMES", "FREE", "CAPACITY"], &[3, 4, 5], rows.collect(), width)
}

/// An array with all that belongs to it.
pub fn array(details: &ArrayDetails) -> String {
    let a = &details.array;
    if a.uuid.is_empty() {
        // Nothing of it is known but its name until it is assembled.
        return pairs(&[("Array", a.name.clone()), ("State", format!("{}: {}", a.state, a.reason))]);
    }
    let mut out = pairs(&[
        ("Array", a.name.clone()),
        ("State", format!("{}: {}", a.state, a.reason)),
        ("UUID", a.uuid.clone()),
        ("Capacity", format!("{}, {} free", show(a.capacity_bytes), show(a.free_bytes))),
        ("Extent", show(a.extent_bytes)),
        ("Shards", a.shards.to_string()),
        ("Generation", a.generation.to_string()),
    ]);
    out += "\n";
    out += &members(&details.member_list);
    out += "\n";
    out += &volumes(&details.volume_list);
    let running: Vec<Operation> = details.operation_list.iter().filter(|o| !o.ended()).cloned().collect();
    if !running.is_empty() {
        out += "\n";
        out += &operations(&running);
    }
    out
}

/// A list of members.
pub fn members(list: &[Member]) -> String {
    let name = |m: &Member| format!("member {} of array {}", m.number, m.array);
    members_at(list, width()) + &reasons(list.iter().map(|m| (name(m), &*m.state, &*m.reason)))
}

fn members_at(list: &[Member], width: Option<u16>) -> String {
    if list.is_empty() {
        return none("members");
    }
    let rows = list.iter().map(|m| {
        vec![
            m.array.clone(),
            m.number.to_string(),
            m.state.clone(),
            show(m.size_bytes),
            show(m.used_bytes),
            (m.read_errors + m.write_errors).to_string(),
            m.address.clone(),
        ]
    });
    table(&["ARRAY", "MEMBER", "STATE", "SIZE", "USED", "ERRORS", "ADDRESS"], &[1, 3, 4, 5], rows.collect(), width)
}

/// A member.
pub fn member(m: &Member) -> String {
    pairs(&[
        ("Member", format!("{} of array {}", m.number, m.array)),
        ("Address", m.address.clone()),
        ("State", format!("{}: {}", m.state, m.reason)),
        ("UUID", m.uuid.clone()),
        ("Size", format!("{}, {} in use", show(m.size_bytes), show(m.used_bytes))),
        ("Block size", show(m.block_size_bytes.into())),
        ("Read errors", format!("{}, {} repaired", m.read_errors, m.repaired_errors)),
        ("Write errors", m.write_errors.to_string()),
    ])
}

/// A list of volumes.
pub fn volumes(list: &[Volume]) -> String {
    let name = |v: &Volume| format!("volume {}/{}", v.array, v.name);
    volumes_at(list, width()) + &reasons(list.iter().map(|v| (name(v), &*v.state, &*v.reason)))
}

fn volumes_at(list: &[Volume], width: Option<u16>) -> String {
    if list.is_empty() {
        return none("volumes");
    }
    let rows = list.iter().map(|v| {
        vec![
            format!("{}/{}", v.array, v.name),
            v.state.clone(),
            v.level.clone(),
            v.width.to_string(),
            show(v.chunk_bytes.into()),
            show(v.size_bytes),
            v.policy.clone(),
        ]
    });
    table(&["VOLUME", "STATE", "LEVEL", "WIDTH", "CHUNK", "SIZE", "POLICY"], &[3, 4, 5], rows.collect(), width)
}

/// A volume.
pub fn volume(v: &Volume) -> String {
    let mut rows = vec![
        ("Volume", format!("{}/{}", v.array, v.name)),
        ("State", format!("{}: {}", v.state, v.reason)),
        ("UUID", v.uuid.clone()),
        ("Level", format!("{}, {} wide, {} chunks", v.level, v.width, show(v.chunk_bytes.into()))),
        ("Size", format!("{}, occupies {}", show(v.size_bytes), show(v.allocated_bytes))),
        ("Block size", show(v.block_size_bytes.into())),
        ("Policy", format!("{}{}", v.policy, if v.dirty { ", dirty" } else { "" })),
        ("Groups", format!("{}, {} degraded, {} not in sync", v.groups, v.degraded_groups, v.unsynced_groups)),
    ];
    if let Some(r) = &v.regions {
        let text = format!(
            "{} unwritten, {} clean, {} dirty, {} to be resynced, {} being resynced",
            r.unwritten, r.clean, r.dirty, r.need_sync, r.syncing
        );
        rows.push(("Regions", text));
    }
    pairs(&rows)
}

/// A list of exports.
pub fn exports(list: &[Export]) -> String {
    exports_at(list, width()) + &reasons(list.iter().map(|e| (format!("export {}", e.volume), &*e.state, &*e.reason)))
}

fn exports_at(list: &[Export], width: Option<u16>) -> String {
    if list.is_empty() {
        return none("exports");
    }
    let rows = list.iter().map(|e| {
        let hosts = if e.any_host { "any".to_owned() } else { e.hosts.join(" ") };
        vec![e.volume.clone(), e.state.clone(), e.nqn.clone(), e.nsid.to_string(), e.listen.join(" "), hosts]
    });
    table(&["VOLUME", "STATE", "NQN", "NS", "LISTENS ON", "HOSTS"], &[3], rows.collect(), width)
}

/// A list of operations.
pub fn operations(list: &[Operation]) -> String {
    let name = |o: &Operation| format!("operation {}", o.id);
    operations_at(list, width()) + &reasons(list.iter().map(|o| (name(o), &*o.state, &*o.reason)))
}

fn operations_at(list: &[Operation], width: Option<u16>) -> String {
    if list.is_empty() {
        return none("operations");
    }
    let rows = list.iter().map(|o| {
        let progress = format!("{:.1}% of {}", o.percent(), show(o.total_bytes));
        let rate = o.rate().map_or("-".to_owned(), |r| format!("{}/s", show(r as u64)));
        let time = match (o.left(), o.elapsed) {
            (Some(left), _) => format!("{} left", self::time(left)),
            (None, Some(elapsed)) => self::time(elapsed),
            (None, None) => "-".to_owned(),
        };
        vec![o.id.clone(), o.kind.clone(), o.target.clone(), o.state.clone(), progress, rate, time]
    });
    table(&["OPERATION", "KIND", "TARGET", "STATE", "PROGRESS", "RATE", "TIME"], &[5], rows.collect(), width)
}

/// An operation on one line.
pub fn operation_line(o: &Operation) -> String {
    let mut line =
        format!("{} {} of {}: {}, {:.1}% of {}", o.id, o.kind, o.target, o.state, o.percent(), show(o.total_bytes));
    if let Some(rate) = o.rate() {
        line += &format!(", {}/s", show(rate as u64));
    }
    match (o.left(), o.elapsed) {
        (Some(left), _) => line += &format!(", {} left", time(left)),
        (None, Some(elapsed)) if o.ended() => line += &format!(", after {}", time(elapsed)),
        _ => {}
    }
    // That one is done says nothing new.
    if o.ended() && o.state != "succeeded" && !o.reason.is_empty() {
        line += &format!(" ({})", o.reason);
    }
    line
}

/// An event on one line.
pub fn event_line(e: &Event) -> String {
    let about = if e.resource.is_empty() { "raidd" } else { &e.resource };
    let time = e.time.as_deref().unwrap_or("-");
    format!("{time} {:<7} {} {about}: {}", e.severity, e.code, e.message)
}

/// A list of faults.
pub fn faults(list: &[Fault]) -> String {
    if list.is_empty() {
        return none("faults");
    }
    let rows = list.iter().map(|f| {
        let range = match f.length_bytes {
            None if f.offset_bytes == 0 => "everywhere".to_owned(),
            None => format!("from {}", show(f.offset_bytes)),
            Some(length) => format!("{} at {}", show(length), show(f.offset_bytes)),
        };
        vec![f.number.to_string(), f.member.clone(), f.on.join(","), f.effect.clone(), range]
    });
    table(&["FAULT", "MEMBER", "ON", "EFFECT", "RANGE"], &[0], rows.collect(), width())
}

/// The daemon and what it serves.
pub fn status(s: &Status) -> String {
    let d = &s.daemon;
    let mut out = pairs(&[
        (
            "raidd",
            format!("version {}, process {}, since {}", d.version, d.pid, d.start_time.as_deref().unwrap_or("-")),
        ),
        (
            "Memory",
            format!(
                "{} resident, {} of {} buffers in use",
                show(d.resident_bytes),
                show(d.buffer_used_bytes),
                show(d.buffer_bytes)
            ),
        ),
        ("Polling", d.polling.clone()),
        ("Page", d.http_address.as_ref().map_or("off".into(), |a| format!("http://{a}/"))),
        ("Fault injection", if d.faults_enabled { "possible" } else { "off" }.into()),
    ]);
    let rows = d.reactors.iter().map(|r| {
        let core = r.core.map_or("any".into(), |c| c.to_string());
        let shards: Vec<String> = r.shards.iter().map(|s| format!("{}: {}", s.array, ranges(&s.shards))).collect();
        vec![r.number.to_string(), core, format!("{:.1}%", r.busy_share * 100.0), shards.join("; ")]
    });
    out += "\n";
    out += &table(&["REACTOR", "CORE", "BUSY", "SHARDS"], &[0, 1, 2], rows.collect(), width());
    out += "\n";
    out += &arrays(&s.arrays);
    out += "\n";
    out += &exports(&s.exports);
    let running: Vec<Operation> = s.operations.iter().filter(|o| !o.ended()).cloned().collect();
    if !running.is_empty() {
        out += "\n";
        out += &operations(&running);
    }
    out
}

/// Sorted numbers with runs drawn together: `0-3 8`.
fn ranges(numbers: &[u32]) -> String {
    let mut out: Vec<(u32, u32)> = Vec::new();
    for &n in numbers {
        match out.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => out.push((n, n)),
        }
    }
    let text = out.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    text.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
