//! Following operations to their end: bars on a terminal, lines or records elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use raid_proto::names::Name;
use raid_proto::v1;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cli::Format;
use crate::client::Client;
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view::Operation;

/// How much is told while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Every step.
    All,
    /// Bars on a terminal, and the ends.
    Ends,
    /// Bars on a terminal, and nothing else.
    Bars,
}

/// Follows operations until all have ended. One that ended without success, or the time being over, is a failure.
pub async fn follow(
    client: &Client,
    ids: Vec<String>,
    format: Format,
    tell: Tell,
    timeout: Option<Duration>,
) -> Result<()> {
    let deadline = timeout.map(|t| Instant::now() + t);
    let (send, mut receive) = mpsc::channel::<Result<Operation>>(16);
    let mut open = ids.len();
    for id in ids {
        let (mut service, send) = (client.operations(), send.clone());
        tokio::spawn(async move {
            let name = Name::Operation(id.strip_prefix("operations/").unwrap_or(&id).to_owned()).to_string();
            let end = async {
                let mut stream = service.watch_operation(v1::WatchOperationRequest { name }).await?.into_inner();
                let mut last = None;
                while let Some(operation) = stream.message().await? {
                    let operation = Operation::from(operation);
                    last = Some(operation.clone());
                    if send.send(Ok(operation)).await.is_err() {
                        return Ok(());
                    }
                }
                match last {
                    Some(o) if o.ended() => Ok(()),
                    _ => Err(Failure::new(Exit::Unavailable, "raidd closed the watch before the operation had ended")),
                }
            };
            if let Err(e) = end.await {
                // The other side ends at the first failure.
                let _ = send.send(Err(e)).await;
            }
        });
    }
    drop(send);
    let mut shown = Shown::new(format, tell);
    let mut failed = Vec::new();
    while open > 0 {
        let next = async {
            match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, receive.recv()).await.ok(),
                None => Some(receive.recv().await),
            }
        };
        let Some(next) = next.await else {
            let open = output::count(open as u64, "operation");
            let message = format!("the time is over with {open} not ended; all go on");
            return Err(Failure::new(Exit::TimedOut, message));
        };
        let Some(operation) = next else { break };
        let operation = operation?;
        shown.update(&operation)?;
        if operation.ended() {
            open -= 1;
            if operation.state != "succeeded" {
                failed.push(output::operation_line(&operation));
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => {
            Err(Failure::new(Exit::OperationFailed, format!("not all operations succeeded: {}", failed.join("; "))))
        }
    }
}

/// What has been told so far.
struct Shown {
    format: Format,
    tell: Tell,
    /// On a terminal.
    bars: Option<MultiProgress>,
    by_id: BTreeMap<String, (ProgressBar, u64, String)>,
}

impl Shown {
    fn new(format: Format, tell: Tell) -> Shown {
        let terminal = std::io::stderr().is_terminal() && format == Format::Table;
        Shown { format, tell, bars: terminal.then(MultiProgress::new), by_id: BTreeMap::new() }
    }

    fn update(&mut self, o: &Operation) -> Result<()> {
        let bars = &self.bars;
        let (bar, percent, state) = self.by_id.entry(o.id.clone()).or_insert_with(|| {
            let bar = bars.as_ref().map_or_else(ProgressBar::hidden, |all| all.add(ProgressBar::new(o.total_bytes)));
            bar.set_style(style());
            bar.set_message(format!("{} {}", o.kind, o.target));
            (bar, u64::MAX, String::new())
        });
        bar.set_length(o.total_bytes);
        bar.set_position(o.done_bytes);
        if o.ended() {
            // Its last line is printed instead, where it stays.
            bar.finish_and_clear();
        }
        // A whole percent is news; less would be a flood in a file.
        let now = o.percent() as u64;
        let news = now != *percent || o.state != *state;
        (*percent, *state) = (now, o.state.clone());
        let wanted = match (self.tell, bars.is_some()) {
            (Tell::Bars, _) => false,
            (_, true) | (Tell::Ends, false) => o.ended(),
            (Tell::All, false) => news,
        };
        if wanted {
            output::print_item(self.format, o, output::operation_line)?;
        }
        Ok(())
    }
}

fn style() -> ProgressStyle {
    const TEMPLATE: &str = "{msg:30!} {wide_bar} {percent:>3}% {binary_bytes_per_sec:>13} {eta:>4}";
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}
