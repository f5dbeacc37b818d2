//! The status page: HTML from the server, no script, readable without style.

use std::fmt::{self, Display, Write};
use std::time::SystemTime;

use super::backend::{
    Array, ArrayState, Backend, Event, Export, ExportState, Hosts, MemberState, Operation, OperationKind,
    OperationState, System, VolumeState,
};
use raid_core::manager::{Policy, Severity};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--good:#1a7f37;--warn:#9a6700;--bad:#cf222e;--soft:#656d76}\
@media(prefers-color-scheme:dark){:root{--good:#3fb950;--warn:#d29922;--bad:#f85149;--soft:#8d96a0}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1rem 1.5rem 3rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .25rem}p{margin:.25rem 0;color:var(--soft)}\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}\
caption{text-align:left;font-weight:600;padding:.25rem 0}\
th,td{text-align:left;vertical-align:top;white-space:nowrap;padding:.3rem .6rem;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{padding-left:0}\
td:last-child{white-space:normal;overflow-wrap:anywhere;min-width:14rem;width:100%}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}.good,.warn,.bad{font-weight:600}\
progress{width:10rem}code{font-size:.9em;overflow-wrap:anywhere}";

/// Text that is safe in HTML: addresses and messages come from outside.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Bytes with an IEC unit and at most one decimal.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (self.0.max(1).ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        if value.fract() == 0.0 {
            write!(f, "{value} {}", UNITS[power])
        } else {
            write!(f, "{value:.1} {}", UNITS[power])
        }
    }
}

/// A cell of a table.
enum Cell {
    Text(String),
    Code(String),
    Number(String),
    State(&'static str, &'static str),
    Progress(u64, u64),
}

fn text(value: impl Display) -> Cell {
    Cell::Text(value.to_string())
}

fn number(value: impl Display) -> Cell {
    Cell::Number(value.to_string())
}

/// The page of this moment.
pub fn render<B: Backend>(backend: &B) -> String {
    let mut out = String::with_capacity(16 << 10);
    // Writing to a String cannot fail.
    let _ = page(&mut out, backend);
    out
}

fn page<B: Backend>(out: &mut String, backend: &B) -> fmt::Result {
    let system = backend.system();
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>raidd</title>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"10\"><style>{STYLE}</style></head><body>\n<main>\n<h1>raidd</h1>\n"
    )?;
    let up = SystemTime::now().duration_since(system.started).unwrap_or_default().as_secs();
    writeln!(
        out,
        "<p>version {}, process {}, up {}, {} resident, {} of {} buffers in use; <a href=\"/metrics\">metrics</a></p>",
        Escaped(&system.version),
        system.pid,
        elapsed(up),
        Size(system.resident),
        Size(system.buffers_used),
        Size(system.buffers)
    )?;
    let arrays = backend.arrays();
    if arrays.is_empty() {
        writeln!(out, "<h2>Arrays</h2><p>No array is assembled.</p>")?;
    }
    for array in &arrays {
        self::array(out, array)?;
    }
    exports(out, &backend.exports())?;
    operations(out, &backend.operations())?;
    reactors(out, &system)?;
    events(out, &backend.events().history())?;
    out.write_str("</main>\n</body></html>\n")
}

fn elapsed(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// A table, or that there is nothing. Without a caption where the heading above says it already.
fn table(out: &mut String, caption: &str, head: &[&str], rows: Vec<Vec<Cell>>) -> fmt::Result {
    if rows.is_empty() {
        let colon = if caption.is_empty() { "" } else { ": " };
        return writeln!(out, "<p>{}{colon}none</p>", Escaped(caption));
    }
    let numeric: Vec<bool> = rows[0].iter().map(|c| matches!(c, Cell::Number(_))).collect();
    out.write_str("<div class=\"scroll\"><table>")?;
    if !caption.is_empty() {
        write!(out, "<caption>{}</caption>", Escaped(caption))?;
    }
    out.write_str("<thead><tr>")?;
    for (column, title) in head.iter().enumerate() {
        let class = if numeric.get(column) == Some(&true) { " class=\"n\"" } else { "" };
        write!(out, "<th scope=\"col\"{class}>{}</th>", Escaped(title))?;
    }
    out.write_str("</tr></thead><tbody>\n")?;
    for row in rows {
        out.write_str("<tr>")?;
        for cell in row {
            match cell {
                Cell::Text(t) => write!(out, "<td>{}</td>", Escaped(t))?,
                Cell::Code(t) => write!(out, "<td><code>{}</code></td>", Escaped(t))?,
                Cell::Number(t) => write!(out, "<td class=\"n\">{}</td>", Escaped(t))?,
                Cell::State(class, t) => write!(out, "<td class=\"{class}\">{}</td>", Escaped(t))?,
                Cell::Progress(done, total) => {
                    let percent = if total == 0 { 0.0 } else { done as f64 * 100.0 / total as f64 };
                    write!(out, "<td><progress max=\"{}\" value=\"{done}\">{percent:.0}%</progress> ", total.max(1))?;
                    write!(out, "{percent:.1}% of {}</td>", Size(total))?;
                }
            }
        }
        out.write_str("</tr>\n")?;
    }
    out.write_str("</tbody></table></div>\n")
}

fn array(out: &mut String, array: &Array) -> fmt::Result {
    let (class, state) = match array.state {
        ArrayState::Assembling => ("warn", "assembling"),
        ArrayState::Failed => ("bad", "failed"),
        ArrayState::Degraded => ("bad", "degraded"),
        ArrayState::Rebuilding => ("warn", "rebuilding"),
        ArrayState::Healthy => ("good", "healthy"),
        ArrayState::Stopped => ("warn", "stopped"),
    };
    writeln!(
        out,
        "<h2>Array {}: <span class=\"{class}\">{state}</span></h2>{}<p>{} free of {}, extents of {}, {} shards, generation {}</p>",
        Escaped(&array.name),
        if array.reason.is_empty() { String::new() } else { format!("<p>{}</p>", Escaped(&array.reason)) },
        Size(array.free),
        Size(array.capacity),
        Size(array.extent),
        array.shards,
        array.generation
    )?;
    let members = array.members.iter().map(|m| {
        let state = match m.state {
            MemberState::Active => Cell::State("good", "active"),
            MemberState::Rebuilding => Cell::State("warn", "rebuilding"),
            MemberState::Spare => text("spare"),
            MemberState::Failed => Cell::State("bad", "failed"),
            MemberState::Missing => Cell::State("bad", "missing"),
        };
        vec![
            number(m.number),
            Cell::Code(m.address.clone()),
            state,
            number(Size(m.size)),
            number(Size(m.used)),
            number(m.read_errors),
            number(m.write_errors),
            number(m.repaired),
            text(&m.reason),
        ]
    });
    let head = ["Number", "Address", "State", "Size", "Used", "Read errors", "Write errors", "Repaired", "Reason"];
    table(out, "Members", &head, members.collect())?;
    let volumes = array.volumes.iter().map(|v| {
        let class = match v.state {
            VolumeState::Offline | VolumeState::Degraded => "bad",
            VolumeState::Rebuilding | VolumeState::Resyncing => "warn",
            VolumeState::Healthy => "good",
        };
        let state = Cell::State(class, v.state.word());
        let policy = match v.policy {
            Policy::None => "none",
            Policy::Resync => "resync",
            Policy::Bitmap => "bitmap",
        };
        vec![
            text(&v.name),
            state,
            text(v.level),
            number(v.width),
            number(Size(v.chunk.into())),
            number(Size(v.size)),
            number(Size(v.block_size.into())),
            text(policy),
            text(&v.reason),
        ]
    });
    let head = ["Name", "State", "Level", "Width", "Chunk", "Size", "Block", "Policy", "Reason"];
    table(out, "Volumes", &head, volumes.collect())
}

fn exports(out: &mut String, exports: &[Export]) -> fmt::Result {
    let rows = exports.iter().map(|e| {
        let state = match e.state {
            ExportState::Active => Cell::State("good", "active"),
            ExportState::Offline => Cell::State("bad", "offline"),
        };
        let hosts = match &e.hosts {
            Hosts::Any => "any".to_owned(),
            Hosts::Only(hosts) => hosts.join(", "),
        };
        let listen: Vec<String> = e.listen.iter().map(|l| l.to_string()).collect();
        vec![
            text(format_args!("{}/{}", e.array, e.volume)),
            state,
            Cell::Code(e.nqn.clone()),
            number(e.nsid),
            text(listen.join(", ")),
            text(hosts),
            number(e.controllers),
            text(&e.reason),
        ]
    });
    out.write_str("<h2>Exports</h2>\n")?;
    let head = ["Volume", "State", "NQN", "Namespace", "Listens on", "Hosts", "Controllers", "Reason"];
    table(out, "", &head, rows.collect())
}

fn operations(out: &mut String, operations: &[Operation]) -> fmt::Result {
    let rows = operations.iter().rev().map(|o| {
        let kind = match o.kind {
            OperationKind::Rebuild => "rebuild",
            OperationKind::Replace => "replace",
            OperationKind::Resync => "resync",
            OperationKind::Initialize => "initialize",
        };
        let target = match (&o.volume, o.member) {
            (Some(volume), _) => format!("{}/{volume}", o.array),
            (None, Some(member)) => format!("{} member {member}", o.array),
            (None, None) => o.array.clone(),
        };
        let state = match o.state {
            OperationState::Running => Cell::State("warn", "running"),
            OperationState::Paused => Cell::State("warn", "paused"),
            OperationState::Succeeded => Cell::State("good", "succeeded"),
            OperationState::Failed => Cell::State("bad", "failed"),
            OperationState::Cancelled => text("cancelled"),
        };
        vec![text(&o.id), text(kind), text(target), state, Cell::Progress(o.done, o.total), text(&o.reason)]
    });
    out.write_str("<h2>Operations</h2>\n")?;
    table(out, "", &["ID", "Kind", "Target", "State", "Progress", "Reason"], rows.collect())
}

fn reactors(out: &mut String, system: &System) -> fmt::Result {
    let rows = system.reactors.iter().map(|r| {
        let shards: Vec<String> =
            r.shards.iter().map(|(array, shards)| format!("{array}: {} shards", shards.len())).collect();
        vec![
            number(r.number),
            number(r.core.map_or("any".to_owned(), |c| c.to_string())),
            number(format_args!("{:.1}%", r.busy_share * 100.0)),
            text(shards.join(", ")),
        ]
    });
    writeln!(out, "<h2>Reactors</h2><p>Polling: {}</p>", if system.busy_polling { "busy" } else { "adaptive" })?;
    table(out, "", &["Number", "Core", "Busy", "Shards"], rows.collect())
}

fn events(out: &mut String, events: &[Event]) -> fmt::Result {
    let rows = events.iter().rev().take(20).map(|e| {
        let ago = SystemTime::now().duration_since(e.time).unwrap_or_default().as_secs();
        let severity = match e.severity {
            Severity::Info => text("info"),
            Severity::Warning => Cell::State("warn", "warning"),
            Severity::Error => Cell::State("bad", "error"),
        };
        vec![
            text(format_args!("{} ago", elapsed(ago))),
            severity,
            Cell::Code(e.code.clone()),
            text(&e.resource),
            text(&e.message),
        ]
    });
    out.write_str("<h2>The last events</h2>\n")?;
    table(out, "", &["When", "Severity", "Code", "About", "Message"], rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, shown) in
            [(0, "0 B"), (512, "512 B"), (4096, "4 KiB"), (1536, "1.5 KiB"), (5 << 30, "5 GiB"), (u64::MAX, "16 EiB")]
        {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }

    #[test]
    fn markup_from_outside_is_text() {
        let mut out = String::new();
        table(&mut out, "<c>", &["&"], vec![vec![Cell::Code("<script>\"'".into())]]).expect("written");
        assert!(out.contains("<code>&lt;script&gt;&quot;&#39;</code>"), "{out}");
        assert!(out.contains("<caption>&lt;c&gt;</caption>"), "{out}");
        assert!(out.contains("<th scope=\"col\">&amp;</th>"), "{out}");
    }
}
