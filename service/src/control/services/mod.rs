//! The services of raid.v1: requests checked, taken apart and handed to the backend; its model sent as messages.

mod arrays;
mod exports;
mod operations;
mod system;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use raid_proto::names::{self, Name};
use tokio::sync::watch::Receiver;
use tonic::{Response, Status};

use super::backend::{Array, Backend, Result};
use super::convert::invalid;
use super::error::{Error, Kind};
use super::requests::Requests;

/// How long a resource that was just made may take to show up in the backend's snapshot.
const SETTLE: Duration = Duration::from_secs(5);

/// All services of raid.v1 over one backend.
pub struct Services<B> {
    backend: Arc<B>,
    requests: Arc<Requests>,
    /// Turns true when the daemon stops; streams end then.
    stopping: Receiver<bool>,
}

impl<B> Clone for Services<B> {
    fn clone(&self) -> Self {
        Services { backend: self.backend.clone(), requests: self.requests.clone(), stopping: self.stopping.clone() }
    }
}

impl<B: Backend> Services<B> {
    /// The services. Streams end when `stopping` turns true.
    pub fn new(backend: Arc<B>, stopping: Receiver<bool>) -> Services<B> {
        Services { backend, requests: Arc::default(), stopping }
    }

    /// Makes a change, once for a request ID, whatever becomes of the caller.
    async fn change<Q, A, W>(
        &self,
        request_id: &str,
        request: &Q,
        work: impl FnOnce(Arc<B>) -> W,
    ) -> std::result::Result<Response<A>, Status>
    where
        Q: Clone + PartialEq + Send + Sync + 'static,
        A: Clone + Send + Sync + 'static,
        W: Future<Output = Result<A>> + Send + 'static,
    {
        let work = work(self.backend.clone());
        Ok(Response::new(self.requests.run(request_id, request.clone(), work).await?))
    }

    fn array(&self, name: &str) -> Result<Array> {
        array(&*self.backend, name)
    }
}

fn array<B: Backend>(backend: &B, name: &str) -> Result<Array> {
    backend.arrays().into_iter().find(|a| a.name == name).ok_or_else(|| Error::no_array(name))
}

/// Looks until it is there: the snapshot may lag a moment behind the change that made it.
async fn settled<B: Backend, T>(backend: &B, look: impl Fn(&B) -> Result<T>) -> Result<T> {
    let mut revision = backend.revision();
    let deadline = tokio::time::Instant::now() + SETTLE;
    loop {
        revision.mark_unchanged();
        let refusal = match look(backend) {
            Err(e) if e.kind == Kind::NotFound => e,
            seen => return seen,
        };
        match tokio::time::timeout_at(deadline, revision.changed()).await {
            Ok(Ok(())) => {}
            _ => {
                let message =
                    format!("the change is done and has not shown up yet ({refusal}); look again in a moment");
                return Err(Error::new(Kind::Unavailable, message));
            }
        }
    }
}

/// Takes a resource name of one kind apart.
fn name<T>(text: &str, form: &str, take: impl FnOnce(Name) -> Option<T>) -> Result<T> {
    Name::parse(text).and_then(take).ok_or_else(|| {
        invalid("NAME_MALFORMED", format!("'{text}' is not a name of the form {form}")).with("name", text)
    })
}

fn array_name(text: &str) -> Result<String> {
    name(text, "arrays/ARRAY", |n| if let Name::Array(array) = n { Some(array) } else { None })
}

fn member_name(text: &str) -> Result<(String, u16)> {
    let take = |n| if let Name::Member(array, number) = n { Some((array, number)) } else { None };
    name(text, "arrays/ARRAY/members/NUMBER", take)
}

fn volume_name(text: &str) -> Result<(String, String)> {
    let take = |n| if let Name::Volume(array, volume) = n { Some((array, volume)) } else { None };
    name(text, "arrays/ARRAY/volumes/VOLUME", take)
}

fn export_name(text: &str) -> Result<(String, u32)> {
    let take = |n| if let Name::Export(nqn, nsid) = n { Some((nqn, nsid)) } else { None };
    name(text, "exports/NQN/namespaces/NSID", take)
}

fn operation_name(text: &str) -> Result<String> {
    name(text, "operations/ID", |n| if let Name::Operation(id) = n { Some(id) } else { None })
}

fn fault_name(text: &str) -> Result<u64> {
    name(text, "faults/NUMBER", |n| if let Name::Fault(number) = n { Some(number) } else { None })
}

/// Checks the name that a new array or volume is to have.
fn new_id(what: &str, id: &str) -> Result<()> {
    names::check_id(what, id).map_err(|message| invalid("NAME_INVALID", message))
}

fn nqn(nqn: &str) -> Result<()> {
    names::check_nqn(nqn).map_err(|message| invalid("NQN_MALFORMED", message).with("nqn", nqn))
}

/// The arrays that a list request names: one, or all with `arrays/-`.
fn parents<B: Backend>(backend: &B, parent: &str) -> Result<Vec<Array>> {
    match array_name(parent)?.as_str() {
        "-" => Ok(backend.arrays()),
        one => Ok(vec![array(backend, one)?]),
    }
}
