//! The front end that loads an array in process: `raidd bench array` does it, and answers with a [`LoadResult`].

use super::{LoadArgs, LoadResult, MemberKind};
use crate::daemon;
use crate::error::Failure;

/// Runs it.
pub(super) fn run(args: &LoadArgs) -> Result<LoadResult, Failure> {
    daemon::bench("array", &arguments(args))
}

/// The options, in the form that raidd takes: sizes in bytes, times in seconds.
pub(super) fn arguments(args: &LoadArgs) -> Vec<String> {
    let kind = match args.member_kind {
        MemberKind::Ram => "ram",
        MemberKind::File => "file",
    };
    let mut out: Vec<String> = [
        ("--level", args.level.name().to_owned()),
        ("--members", args.members.to_string()),
        ("--member-size", args.member_size.to_string()),
        ("--member-kind", kind.to_owned()),
        ("--chunk", args.chunk.to_string()),
        ("--rw", args.rw.name().to_owned()),
        ("--bs", args.bs.to_string()),
        ("--qd", args.qd.to_string()),
        ("--queues", args.queues.to_string()),
        ("--read-share", args.read_share.to_string()),
        ("--time", args.time.as_secs_f64().to_string()),
        ("--warmup", args.warmup.as_secs_f64().to_string()),
        ("--seed", args.seed.to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    let mut optional = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            out.extend([name.to_owned(), value]);
        }
    };
    optional("--member-dir", args.member_dir.clone());
    optional("--size", args.size.map(|s| s.to_string()));
    let cores: Vec<_> = args.core.iter().map(usize::to_string).collect();
    optional("--core", (!cores.is_empty()).then(|| cores.join(",")));
    out
}
