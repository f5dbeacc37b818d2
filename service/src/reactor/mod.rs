//! Reactors: pinned threads that poll; mailboxes between them; adaptive sleep.
//!
//! A pass of a reactor: take control work, poll every poller, and, when nothing worked for a while, sleep until a
//! descriptor, a mailbox or a deadline calls. Pollers ring their own doorbells at the end of their poll.

mod mailbox;
mod thread;

pub use mailbox::{Mailbox, Sender, Waker, mailbox};
pub use thread::{Context, Polling, Reactor, ReactorHandle, ReactorStats, start};

use std::sync::LazyLock;
use std::time::Instant;

use raid_core::units::Tick;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The monotonic clock, in nanoseconds since the process began to look at it.
pub fn now() -> Tick {
    Tick(START.elapsed().as_nanos() as u64)
}

/// A thing that a reactor polls.
pub trait Poller {
    /// A short name, for messages.
    fn name(&self) -> &str;

    /// Does what can be done without waiting. True if anything was done: the reactor then does not sleep.
    fn poll(&mut self, cx: &mut Context) -> bool;

    /// When to poll again even if nothing happens.
    fn next_deadline(&self) -> Option<Tick> {
        None
    }

    /// True when the poller has ended and is to be dropped.
    fn finished(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
