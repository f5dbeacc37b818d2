//! Deliberate faults of the executor and of the simulator's manager: the negative controls. Each must be found, or the
//! checkers are worth nothing.

use crate::rng::Rng;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Some data writes are answered and not done.
    SkipWrite,
    /// Some parity writes, or writes to a second copy, are answered and not done.
    SkipRedundancy,
    /// Some writes stop halfway and are answered as done.
    TornWrite,
    /// Some writes go to the block beside.
    MisdirectedWrite,
    /// Some zeroing is answered and not done.
    SkipZero,
    /// The kernel multiplies by one where it should multiply by something else.
    PlainXor,
    /// The kernel loses the last term of some combinations.
    LoseTerm,
    /// A failed member write is answered as done.
    HideWriteError,
    /// A failed member read is answered as done.
    HideReadError,
    /// Requests are answered before the engine has answered.
    EarlyReply,
    /// The manager publishes a failure before it is durable.
    EarlyFailure,
    /// The manager publishes the dirty mark before it is durable.
    EarlyDirty,
    /// The manager leaves stripes out of a rebuild.
    SkipRebuild,
    /// Flushes of members are answered and not done.
    SkipFlush,
    /// Flushes that the manager orders are answered and not done.
    SkipManagerFlush,
    /// Resync steps are answered and not done.
    SkipResync,
    /// Every third stripe is left out of a resync.
    PartResync,
    /// FUA is ignored.
    IgnoreFua,
    /// Some answers of members never come.
    LoseAnswer,
    /// A lane reads for others although its view is not the newest.
    ReadBehind,
}

/// Every fault, with its name on the command line and what it does.
pub const ALL: &[(Break, &str, &str)] = &[
    (Break::SkipWrite, "skip-write", "some data writes are answered and not done"),
    (Break::SkipRedundancy, "skip-redundancy", "some writes of parity or second copies are answered and not done"),
    (Break::TornWrite, "torn-write", "some writes stop halfway and are answered as done"),
    (Break::MisdirectedWrite, "misdirected-write", "some writes go to the block beside"),
    (Break::SkipZero, "skip-zero", "some zeroing is answered and not done"),
    (Break::PlainXor, "plain-xor", "the kernel takes every coefficient for one"),
    (Break::LoseTerm, "lose-term", "the kernel loses the last term of some combinations"),
    (Break::HideWriteError, "hide-write-error", "a failed member write is answered as done"),
    (Break::HideReadError, "hide-read-error", "a failed member read is answered as done"),
    (Break::EarlyReply, "early-reply", "writes are answered before the engine has answered"),
    (Break::EarlyFailure, "early-failure", "a member's failure is published before it is durable"),
    (Break::EarlyDirty, "early-dirty", "the dirty mark is published before it is durable"),
    (Break::SkipRebuild, "skip-rebuild", "stripes are left out of a rebuild"),
    (Break::SkipFlush, "skip-flush", "flushes of members are answered and not done"),
    (Break::SkipManagerFlush, "skip-manager-flush", "flushes that the manager orders are answered and not done"),
    (Break::SkipResync, "skip-resync", "resync steps are answered and not done"),
    (Break::PartResync, "part-resync", "every third stripe is left out of a resync"),
    (Break::IgnoreFua, "ignore-fua", "FUA is ignored"),
    (Break::LoseAnswer, "lose-answer", "some answers of members never come"),
    (Break::ReadBehind, "read-behind", "lanes read for others although their view is not the newest"),
];

impl Break {
    /// By its name on the command line.
    pub fn by_name(name: &str) -> Option<Break> {
        ALL.iter().find(|b| b.1 == name).map(|b| b.0)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|b| b.0 == self).map_or("", |b| b.1)
    }

    /// The one line that says which there are.
    pub fn list() -> String {
        ALL.iter().map(|b| format!("{:18} {}\n", b.1, b.2)).collect()
    }
}

/// Whether a fault strikes now: it does so `percent` times of a hundred.
pub(crate) fn strikes(active: Option<Break>, which: Break, percent: u64, rng: &mut Rng) -> bool {
    active == Some(which) && rng.percent(percent)
}
