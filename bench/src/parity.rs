//! `raidbench parity`: the parity kernels' speed, as the daemon's binary measures it.

use serde::{Deserialize, Serialize};

use crate::daemon;
use crate::error::Failure;
use crate::report::{Report, TableData, number};

/// The arguments of `raidbench parity`.
#[derive(clap::Args, Debug)]
pub struct ParityArgs {}

/// The answer of `raidd bench parity --json -`.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    chosen: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    kernel: String,
    operation: String,
    sources: usize,
    bytes: usize,
    cold: bool,
    gib_per_s: f64,
}

/// Runs it and prints the table.
///
/// # Errors
///
/// If raidd cannot be run.
pub fn run(_: &ParityArgs, report: &mut Report) -> Result<(), Failure> {
    let answer: Answer = daemon::bench("parity", &[])?;
    report.print(table(&answer));
    Ok(report.result(&answer)?)
}

/// Operations down, kernels across.
fn table(answer: &Answer) -> TableData {
    let mut kernels: Vec<&str> = vec![];
    let mut lines: Vec<(&str, usize, bool)> = vec![];
    for row in &answer.rows {
        if !kernels.contains(&row.kernel.as_str()) {
            kernels.push(&row.kernel);
        }
        let line = (row.operation.as_str(), row.sources, row.cold);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let bytes = answer.rows.first().map_or(0, |r| r.bytes);
    let title = format!("Source GiB/s, {} KiB pieces; raidd uses {}", bytes / 1024, answer.chosen);
    let mut table = TableData::new(title, ["operation", "sources", "from"].into_iter().chain(kernels.iter().copied()));
    for (operation, sources, cold) in lines {
        let cells = kernels.iter().map(|kernel| {
            let row = answer.rows.iter().find(|r| {
                (r.operation.as_str(), r.sources, r.cold) == (operation, sources, cold) && r.kernel == *kernel
            });
            row.map_or(String::new(), |r| number(r.gib_per_s))
        });
        let from = if cold { "memory" } else { "cache" };
        table.row([operation.to_owned(), sources.to_string(), from.to_owned()].into_iter().chain(cells));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_stand_side_by_side() {
        let row = |kernel: &str, cold, gib_per_s| Row {
            kernel: kernel.into(),
            operation: "xor".into(),
            sources: 3,
            bytes: 65536,
            cold,
            gib_per_s,
        };
        let rows = vec![row("gfni", false, 100.0), row("avx2", false, 50.0), row("avx2", true, 9.0)];
        let table = table(&Answer { chosen: "gfni".into(), rows });
        assert_eq!(table.columns, ["operation", "sources", "from", "gfni", "avx2"]);
        assert_eq!(table.rows, [["xor", "3", "cache", "100", "50.0"], ["xor", "3", "memory", "", "9.00"]]);
    }
}
