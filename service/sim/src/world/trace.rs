//! The last events of a run. Each line is made only when it is printed or the run has failed, so that tracing is cheap.

use std::collections::VecDeque;

use raid_core::units::Tick;
use raid_core::view::{MemberState, SlotState, View};

/// Lines that are kept.
const KEPT: usize = 50;

/// What happens to events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// Nothing: they are too many.
    Off,
    /// The last ones are kept.
    Keep,
    /// They are kept, and printed at once.
    Print,
}

/// See the module's head.
pub(super) struct Trace {
    lines: VecDeque<(Tick, Box<dyn Fn() -> String>)>,
    tracing: Tracing,
}

impl Trace {
    pub(super) fn new(tracing: Tracing) -> Trace {
        Trace { lines: VecDeque::new(), tracing }
    }

    /// Notes what happened; the text is made from captured values when it is wanted.
    pub(super) fn event(&mut self, now: Tick, text: impl Fn() -> String + 'static) {
        if self.tracing == Tracing::Off {
            return;
        }
        if self.tracing == Tracing::Print {
            println!("{:>12} {}", now.0, text());
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((now, Box::new(text)));
    }

    /// Notes something rare, whose text borrows.
    pub(super) fn note(&mut self, now: Tick, text: impl Fn() -> String) {
        if self.tracing == Tracing::Off {
            return;
        }
        let text = text();
        self.event(now, move || text.clone());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|(at, text)| format!("{:>12} {}", at.0, text())).collect()
    }
}

/// A view on one line: members by letter, then each group's slots.
pub(super) fn view(view: &View) -> String {
    let members: String = view
        .members
        .iter()
        .map(|m| match m {
            MemberState::Active => 'A',
            MemberState::Spare => 's',
            MemberState::Failed => 'F',
            MemberState::Removed => '-',
        })
        .collect();
    let mut text = format!("members {members}");
    for v in &view.volumes {
        let flags = format!("{}{}", if v.dirty { " dirty" } else { "" }, if v.online { "" } else { " OFFLINE" });
        text += &format!(", volume {}{flags}", v.id.0);
        for g in &v.groups {
            let slots: Vec<String> = g
                .slots
                .iter()
                .map(|s| {
                    let state = match s.state {
                        SlotState::InSync => "",
                        SlotState::Rebuilding => "r",
                        SlotState::Missing => "x",
                    };
                    format!("{}{state}", s.member.0)
                })
                .collect();
            text += &format!(" [{}{}]", slots.join(" "), if g.synced { "" } else { " unsynced" });
        }
    }
    text
}
