//! The events' history and stream.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use raid_core::manager::Severity;
use tokio::sync::broadcast;

use super::backend::Event;

/// A bounded history of events, and a stream of those to come.
pub struct EventHub {
    inner: Mutex<Inner>,
    stream: broadcast::Sender<Event>,
}

struct Inner {
    history: VecDeque<Event>,
    capacity: usize,
    next: u64,
}

impl EventHub {
    /// Keeps the last `capacity` events; a subscriber that is further behind than that is told how many it missed.
    pub fn new(capacity: usize) -> EventHub {
        let inner = Inner { history: VecDeque::with_capacity(capacity), capacity, next: 1 };
        EventHub { inner: Mutex::new(inner), stream: broadcast::Sender::new(capacity.max(1)) }
    }

    /// Adds an event. `resource` is a resource name, such as `arrays/pool/members/3`, or empty for the daemon itself.
    pub fn publish(&self, severity: Severity, code: &str, resource: &str, message: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Event {
            sequence: inner.next,
            time: SystemTime::now(),
            severity,
            code: code.to_owned(),
            resource: resource.to_owned(),
            message: message.to_owned(),
        };
        inner.next += 1;
        if inner.history.len() == inner.capacity {
            inner.history.pop_front();
        }
        inner.history.push_back(event.clone());
        // Sent under the lock, so that history and stream have the same order. No receiver is no error.
        let _ = self.stream.send(event);
    }

    /// The history so far, oldest first, and every event after it: none twice, none lost in between.
    pub fn subscribe(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.history.iter().cloned().collect(), self.stream.subscribe())
    }

    /// The history so far, oldest first.
    pub fn history(&self) -> Vec<Event> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).history.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_bounded_and_joins_the_stream_without_a_gap() {
        let hub = EventHub::new(3);
        for n in 0..5 {
            hub.publish(Severity::Info, "test", "", &n.to_string());
        }
        let (history, mut stream) = hub.subscribe();
        assert_eq!(history.iter().map(|e| e.sequence).collect::<Vec<_>>(), [3, 4, 5]);
        hub.publish(Severity::Error, "test", "arrays/a", "next");
        assert_eq!(stream.try_recv().expect("an event").sequence, 6);
        assert!(stream.try_recv().is_err());
    }
}
