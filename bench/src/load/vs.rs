//! Two loads in turn. A machine's speed changes from minute to minute; the ratio of two runs side by side much less. So
//! it is taken pair by pair, the order within a pair alternating, and its median is the result.

use clap::Parser;
use serde::Serialize;

use super::{LoadArgs, LoadResult, once, show, title};
use crate::cli::{Cli, Command};
use crate::error::Failure;
use crate::report::{Report, TableData, number};
use crate::stats::median;

/// The second load, if there is to be one: the first's command line with the options of `--vs` in place of its own.
pub(super) fn other(args: &LoadArgs) -> Result<Option<LoadArgs>, Failure> {
    changed(args, std::env::args().collect())
}

pub(super) fn changed(args: &LoadArgs, mut command: Vec<String>) -> Result<Option<LoadArgs>, Failure> {
    let short = [("target", &args.vs_target), ("nqn", &args.vs_nqn)];
    let short = short.iter().filter_map(|(name, value)| value.as_ref().map(|v| format!("{name}={v}")));
    let changes: Vec<String> = args.vs.iter().cloned().chain(short).collect();
    if changes.is_empty() {
        return Ok(None);
    }
    for change in &changes {
        let name = change.split('=').next().unwrap_or_default();
        if name.is_empty() || name.starts_with('-') || name.starts_with("vs") || name == "json" || name == "pairs" {
            return Err(Failure::Usage(format!("--vs {change}: write OPTION=VALUE, as in --vs level=raid6")));
        }
        command.push(format!("--{change}"));
    }
    let cli = Cli::try_parse_from(command).map_err(|e| Failure::Usage(format!("the load of --vs: {e}")))?;
    Ok(Some(match cli.command {
        Some(Command::Run(run)) => run.load,
        _ => cli.load,
    }))
}

/// The rates of one pair.
#[derive(Serialize)]
struct Pair {
    first: LoadResult,
    second: LoadResult,
    /// IOPS of the first divided by those of the second.
    ratio: f64,
}

#[derive(Serialize)]
struct Outcome {
    first: String,
    second: String,
    pairs: Vec<Pair>,
    median_ratio: f64,
}

/// Runs the pairs and prints the tables.
pub(super) fn run(first: &LoadArgs, second: &LoadArgs, report: &mut Report) -> Result<(), Failure> {
    let mut pairs = vec![];
    let mut failed = Ok(());
    for i in 0..first.pairs {
        match pair(first, second, i) {
            Ok(pair) => pairs.push(pair),
            Err(failure) => {
                failed = Err(failure);
                break;
            }
        }
    }
    if pairs.is_empty() {
        return failed;
    }
    let outcome = Outcome {
        first: title(first),
        second: title(second),
        median_ratio: median(&pairs.iter().map(|p| p.ratio).collect::<Vec<_>>()),
        pairs,
    };
    print(&outcome, report);
    let trouble: Vec<String> =
        outcome.pairs.iter().flat_map(|p| [&p.first, &p.second]).filter_map(LoadResult::trouble).collect();
    report.result(&outcome)?;
    // What was measured before a pair failed has been printed; the failure is the outcome all the same.
    failed?;
    if trouble.is_empty() { Ok(()) } else { Err(Failure::Errors(trouble.join("; "))) }
}

/// Both loads, once.
fn pair(first: &LoadArgs, second: &LoadArgs, i: u16) -> Result<Pair, Failure> {
    // Whatever grows or shrinks with time must not favour one of them.
    let (a, b) = if i.is_multiple_of(2) {
        let a = once(first)?;
        (a, once(second)?)
    } else {
        let b = once(second)?;
        (once(first)?, b)
    };
    if a.iops == 0.0 || b.iops == 0.0 {
        return Err(Failure::Run(format!("pair {}: one of the two did not do a single access", i + 1)));
    }
    eprintln!("pair {}: {} and {} IOPS", i + 1, number(a.iops), number(b.iops));
    Ok(Pair { ratio: a.iops / b.iops, first: a, second: b })
}

fn print(outcome: &Outcome, report: &mut Report) {
    let title = format!("A: {}\nB: {}", outcome.first, outcome.second);
    let columns = ["pair", "A IOPS", "A MiB/s", "B IOPS", "B MiB/s", "A / B", "copy GiB/s (A)", "copy GiB/s (B)"];
    let mut table = TableData::new(title.clone(), columns);
    let line = |name: String, a: [f64; 3], b: [f64; 3], ratio: f64| {
        let ratio = format!("{ratio:.3}");
        [name, number(a[0]), number(a[1]), number(b[0]), number(b[1]), ratio, number(a[2]), number(b[2])]
    };
    let rates = |r: &LoadResult| [r.iops, r.mib_per_s, r.memcpy_gib_per_s];
    for (i, pair) in outcome.pairs.iter().enumerate() {
        table.row(line((i + 1).to_string(), rates(&pair.first), rates(&pair.second), pair.ratio));
    }
    let medians = |side: fn(&Pair) -> &LoadResult| {
        [0, 1, 2].map(|i| median(&outcome.pairs.iter().map(|p| rates(side(p))[i]).collect::<Vec<_>>()))
    };
    table.row(line("median".into(), medians(|p| &p.first), medians(|p| &p.second), outcome.median_ratio));
    report.print(table);
    if let Some(last) = outcome.pairs.last() {
        show(&format!("The last pair\n{title}"), &[("A", &last.first), ("B", &last.second)], report);
    }
}
