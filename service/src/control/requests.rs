//! Changes that are done once: the table of request IDs.
//!
//! A client that lost its connection cannot know whether its change was done, and asks again with the same ID. The table
//! gives it the first one's answer. Only changes that succeeded, or still run, are in it: a refused change changed
//! nothing, so that trying again is right.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use super::backend::Result;
use super::convert::invalid;
use super::error::{Error, Kind};

/// How many changes that succeeded are remembered, and how many may run at a time.
pub const REMEMBERED: usize = 1024;

type Anything = Arc<dyn Any + Send + Sync>;
type Outcome = Result<Anything>;

/// The table.
#[derive(Default)]
pub struct Requests {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Uuid, Entry>,
    /// IDs of changes that succeeded, oldest first.
    succeeded: VecDeque<Uuid>,
}

struct Entry {
    request: Anything,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Requests {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work in a task of its own, so that a caller who goes away does not stop it half way, and at most once
    /// for an ID. An empty ID is a new request each time.
    pub async fn run<Q, A>(
        self: &Arc<Self>,
        id: &str,
        request: Q,
        work: impl Future<Output = Result<A>> + Send + 'static,
    ) -> Result<A>
    where
        Q: PartialEq + Send + Sync + 'static,
        A: Clone + Send + Sync + 'static,
    {
        if id.is_empty() {
            return tokio::spawn(work).await.unwrap_or_else(|e| Err(crashed(&e)));
        }
        let id = Uuid::parse_str(id).map_err(|_| {
            invalid(
                "REQUEST_ID_MALFORMED",
                format!("the request ID '{id}' is not a UUID; make one up for each new change"),
            )
        })?;
        let mut outcome = self.begin(id, request, work)?;
        let ended = outcome.wait_for(Option::is_some).await;
        let result = ended.ok().and_then(|o| o.clone()).unwrap_or_else(|| {
            Err(Error::new(
                Kind::Unavailable,
                "the daemon stopped before the change had ended; look at the state, then try again",
            ))
        });
        let answer = result?.downcast::<A>().map_err(|_| reused(id))?;
        Ok((*answer).clone())
    }

    /// Joins the change with this ID, or starts it.
    fn begin<Q, A>(
        self: &Arc<Self>,
        id: Uuid,
        request: Q,
        work: impl Future<Output = Result<A>> + Send + 'static,
    ) -> Result<watch::Receiver<Option<Outcome>>>
    where
        Q: PartialEq + Send + Sync + 'static,
        A: Send + Sync + 'static,
    {
        let mut table = self.table();
        if let Some(entry) = table.entries.get(&id) {
            return match entry.request.downcast_ref::<Q>() {
                Some(first) if *first == request => Ok(entry.outcome.clone()),
                _ => Err(reused(id)),
            };
        }
        if table.entries.len() - table.succeeded.len() >= REMEMBERED {
            let message =
                format!("{REMEMBERED} changes are under way, which is as many as there may be; try again later");
            return Err(Error::new(Kind::Exhausted, message).because("TOO_MANY_CHANGES"));
        }
        let (send, receive) = watch::channel(None);
        table.entries.insert(id, Entry { request: Arc::new(request), outcome: receive.clone() });
        drop(table);
        let requests = self.clone();
        tokio::spawn(async move {
            // In a task inside the task, so that a panic becomes an answer and not a caller who waits for ever.
            let outcome = tokio::spawn(work).await.unwrap_or_else(|e| Err(crashed(&e)));
            requests.end(id, outcome.is_ok());
            // Callers may all have gone.
            let _ = send.send(Some(outcome.map(|answer| Arc::new(answer) as Anything)));
        });
        Ok(receive)
    }

    fn end(&self, id: Uuid, succeeded: bool) {
        let mut table = self.table();
        if !succeeded {
            table.entries.remove(&id);
            return;
        }
        table.succeeded.push_back(id);
        if table.succeeded.len() > REMEMBERED
            && let Some(oldest) = table.succeeded.pop_front()
        {
            table.entries.remove(&oldest);
        }
    }
}

fn reused(id: Uuid) -> Error {
    invalid(
        "REQUEST_ID_REUSED",
        format!("the request ID {id} was used for another change; make up a new UUID for each new change"),
    )
    .with("request_id", id)
}

fn crashed(e: &tokio::task::JoinError) -> Error {
    tracing::error!(error = %e, "a change ended by a fault of raidd itself");
    Error::new(
        Kind::Internal,
        "raidd failed inside while making the change; look at the state and at its log, and report this",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    fn id(n: usize) -> String {
        Uuid::from_u128(n as u128 + 1).to_string()
    }

    async fn count(requests: &Arc<Requests>, id: &str, content: u32, calls: &Arc<AtomicU32>) -> Result<u32> {
        let calls = calls.clone();
        requests.run(id, content, async move { Ok(calls.fetch_add(1, Ordering::Relaxed)) }).await
    }

    #[tokio::test]
    async fn done_once_and_remembered_for_a_while() {
        let (requests, calls) = (Arc::new(Requests::default()), Arc::new(AtomicU32::new(0)));
        assert_eq!(count(&requests, &id(0), 7, &calls).await, Ok(0));
        assert_eq!(count(&requests, &id(0), 7, &calls).await, Ok(0), "done twice");
        assert_eq!(count(&requests, &id(0), 8, &calls).await.expect_err("refused").reason, "REQUEST_ID_REUSED");
        let other_kind = requests.run(&id(0), "text", async { Ok(()) }).await;
        assert_eq!(other_kind.expect_err("refused").reason, "REQUEST_ID_REUSED");
        assert_eq!(count(&requests, "", 7, &calls).await, Ok(1));
        assert_eq!(count(&requests, "", 7, &calls).await, Ok(2));
        assert_eq!(count(&requests, "seven", 7, &calls).await.expect_err("refused").reason, "REQUEST_ID_MALFORMED");
        for n in 0..REMEMBERED {
            count(&requests, &id(n + 1), 0, &calls).await.expect("done");
        }
        assert_eq!(requests.table().entries.len(), REMEMBERED);
        assert_ne!(count(&requests, &id(0), 7, &calls).await, Ok(0), "remembered for ever");
    }

    #[tokio::test]
    async fn a_refusal_may_be_tried_again() {
        let requests = Arc::new(Requests::default());
        let refused: Result<u32> = requests.run(&id(0), (), async { Err(Error::no_array("pool")) }).await;
        assert_eq!(refused, Err(Error::no_array("pool")));
        assert_eq!(requests.run(&id(0), (), async { Ok(5) }).await, Ok(5));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let requests = Arc::new(Requests::default());
        for id in [id(0), String::new()] {
            let result: Result<()> = requests.run(&id, (), async { panic!("on purpose") }).await;
            assert_eq!(result.expect_err("an error").kind, Kind::Internal);
        }
        assert!(requests.table().entries.is_empty());
    }

    #[tokio::test]
    async fn a_second_caller_waits_and_a_caller_who_leaves_stops_nothing() {
        let (requests, calls) = (Arc::new(Requests::default()), Arc::new(AtomicU32::new(0)));
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let first = {
            let (requests, calls) = (requests.clone(), calls.clone());
            tokio::spawn(async move {
                let work = async move {
                    gate.await.expect("opened");
                    Ok(calls.fetch_add(1, Ordering::Relaxed))
                };
                requests.run(&id(0), 7_u32, work).await
            })
        };
        while requests.table().entries.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.abort();
        assert!(first.await.expect_err("gone").is_cancelled());
        let (requests2, calls2) = (requests.clone(), calls.clone());
        let second = tokio::spawn(async move { count(&requests2, &id(0), 7, &calls2).await });
        go.send(()).expect("still waited for");
        assert_eq!(second.await.expect("joined"), Ok(0));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
