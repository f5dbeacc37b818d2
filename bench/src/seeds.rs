//! `raidbench seeds`: tables about how raidd works inside.

use serde::{Deserialize, Serialize};

use crate::daemon;
use crate::error::Failure;
use crate::report::{Report, TableData, number};
use crate::units::{parse_size, show_size};

/// The arguments of `raidbench seeds activations`.
#[derive(clap::Args, Debug)]
pub struct ActivationArgs {
    /// Members of the arrays
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(3..=32))]
    members: u16,
    /// Chunk size
    #[arg(long, default_value = "64KiB", value_parser = parse_size)]
    chunk: u64,
    /// Writes in one batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Where the random offsets start from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The answer of `raidd bench activations --json -`.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    rows: Vec<Row>,
}

/// One level, order and write size.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    /// `raid5` or `raid6`.
    level: String,
    /// `sequential` or `random`.
    pattern: String,
    /// Bytes of each write.
    write_size: u64,
    /// Writes submitted.
    writes: u64,
    /// Stripes written, each counted once in each batch that touched it.
    stripes_written: u64,
    /// Activations of stripes, handled at the last reference.
    activations_last_reference: u64,
    /// Activations, handled at every release.
    activations_every_release: u64,
    /// Member reads and writes, handled at the last reference.
    #[serde(default)]
    member_ios_last_reference: u64,
    /// Member reads and writes, handled at every release.
    #[serde(default)]
    member_ios_every_release: u64,
    /// Rows written, each counted once in each batch that touched it.
    #[serde(default)]
    rows_written: u64,
    /// Queueings of rows, at their last reference.
    #[serde(default)]
    queueings_last_reference: u64,
    /// Queueings, at every release.
    #[serde(default)]
    queueings_every_release: u64,
}

/// Runs it and prints the table.
///
/// # Errors
///
/// If raidd cannot be run.
pub fn activations(args: &ActivationArgs, report: &mut Report) -> Result<(), Failure> {
    let arguments: Vec<String> = [
        ("--members", args.members.to_string()),
        ("--chunk", args.chunk.to_string()),
        ("--batch", args.batch.to_string()),
        ("--seed", args.seed.to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    let answer: Answer = daemon::bench("activations", &arguments)?;
    report.print(activations_table(args, &answer));
    report.print(queueings_table(args, &answer));
    Ok(report.result(&answer)?)
}

fn more(last: u64, every: u64) -> String {
    if last > 0 { format!("{:+.0}%", (every as f64 / last as f64 - 1.0) * 100.0) } else { String::new() }
}

fn per(count: u64, of: u64) -> String {
    number(count as f64 / of.max(1) as f64)
}

fn activations_table(args: &ActivationArgs, answer: &Answer) -> TableData {
    let title = format!(
        "Activations (a stripe is planned and its I/O ordered) and member I/Os per stripe written; {} members, {} chunks, {} writes to a batch",
        args.members,
        show_size(args.chunk),
        args.batch
    );
    let columns = [
        "level",
        "order",
        "write",
        "stripes",
        "at the last reference",
        "at every release",
        "more",
        "member I/Os, last",
        "member I/Os, every",
    ];
    let mut table = TableData::new(title, columns);
    for row in &answer.rows {
        table.row([
            row.level.clone(),
            row.pattern.clone(),
            show_size(row.write_size),
            row.stripes_written.to_string(),
            per(row.activations_last_reference, row.stripes_written),
            per(row.activations_every_release, row.stripes_written),
            more(row.activations_last_reference, row.activations_every_release),
            per(row.member_ios_last_reference, row.stripes_written),
            per(row.member_ios_every_release, row.stripes_written),
        ]);
    }
    table
}

fn queueings_table(args: &ActivationArgs, answer: &Answer) -> TableData {
    let title = format!(
        "Queueings (md's count: a 4 KiB row is queued to be looked at) per row written; {} members, {} writes to a batch",
        args.members, args.batch
    );
    let columns = ["level", "order", "write", "rows", "at the last reference", "at every release", "more"];
    let mut table = TableData::new(title, columns);
    for row in &answer.rows {
        table.row([
            row.level.clone(),
            row.pattern.clone(),
            show_size(row.write_size),
            row.rows_written.to_string(),
            per(row.queueings_last_reference, row.rows_written),
            per(row.queueings_every_release, row.rows_written),
            more(row.queueings_last_reference, row.queueings_every_release),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_per_stripe_and_the_difference_in_percent() {
        let args = ActivationArgs { members: 5, chunk: 65536, batch: 32, seed: 1 };
        let json = r#"{"rows":[{"level":"raid5","pattern":"sequential","write_size":4096,"writes":640,"stripes_written":10,
            "activations_last_reference":10,"activations_every_release":45,
            "member_ios_last_reference":40,"member_ios_every_release":180,
            "rows_written":160,"queueings_last_reference":320,"queueings_every_release":1440}]}"#;
        let answer = serde_json::from_str(json).unwrap();
        let table = queueings_table(&args, &answer);
        assert_eq!(table.rows, [["raid5", "sequential", "4 KiB", "160", "2.00", "9.00", "+350%"]]);
        let table = activations_table(&args, &answer);
        assert_eq!(table.rows, [["raid5", "sequential", "4 KiB", "10", "1.00", "4.50", "+350%", "4.00", "18.0"]]);
    }
}
