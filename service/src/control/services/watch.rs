//! Events and changes of resources, as they happen.
//!
//! Changes are the difference of two snapshots, so that a slow watcher gets fewer messages, never old ones.

use std::collections::BTreeMap;
use std::time::Duration;

use raid_proto::names::Name;
use raid_proto::v1;
use raid_proto::v1::ChangeKind;
use raid_proto::v1::event_service_server::EventService;
use raid_proto::v1::watch_response::Change;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Services, array_name};
use crate::control::backend::{Backend, Event};
use crate::control::convert;
use crate::control::error::{Error, Kind};
use crate::control::paging::page;

type Answer<T> = std::result::Result<Response<T>, Status>;
type Sender = mpsc::Sender<std::result::Result<v1::WatchResponse, Status>>;

/// At most one round of changes in this time.
const PACE: Duration = Duration::from_millis(100);

/// A resource of any kind.
#[derive(Clone, PartialEq)]
enum Resource {
    Array(v1::Array),
    Member(v1::Member),
    Volume(v1::Volume),
    Export(v1::Export),
    Operation(v1::Operation),
}

impl Resource {
    fn change(self, kind: ChangeKind) -> Change {
        let kind = kind.into();
        match self {
            Resource::Array(array) => Change::Array(v1::ArrayChange { kind, array: Some(array) }),
            Resource::Member(member) => Change::Member(v1::MemberChange { kind, member: Some(member) }),
            Resource::Volume(volume) => Change::Volume(v1::VolumeChange { kind, volume: Some(volume) }),
            Resource::Export(export) => Change::Export(v1::ExportChange { kind, export: Some(export) }),
            Resource::Operation(operation) => {
                Change::Operation(v1::OperationChange { kind, operation: Some(operation) })
            }
        }
    }
}

type Snapshot = BTreeMap<String, Resource>;

fn snapshot<B: Backend>(backend: &B, only: Option<&str>) -> Snapshot {
    let wanted = |array: &str| only.is_none_or(|only| only == array);
    let mut all = Snapshot::new();
    for array in backend.arrays().iter().filter(|a| wanted(&a.name)) {
        for m in array.members.iter().map(|m| convert::member(&array.name, m)) {
            all.insert(m.name.clone(), Resource::Member(m));
        }
        for v in array.volumes.iter().map(|v| convert::volume(&array.name, v)) {
            all.insert(v.name.clone(), Resource::Volume(v));
        }
        let array = convert::array(array);
        all.insert(array.name.clone(), Resource::Array(array));
    }
    for e in backend.exports().iter().filter(|e| wanted(&e.array)).map(convert::export) {
        all.insert(e.name.clone(), Resource::Export(e));
    }
    for o in backend.operations().iter().filter(|o| wanted(&o.array)).map(convert::operation) {
        all.insert(o.name.clone(), Resource::Operation(o));
    }
    all
}

/// What leads from one snapshot to the other: removals first, so that a name that was used again is never doubled.
fn difference(old: &Snapshot, new: &Snapshot) -> Vec<Change> {
    let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
    let removed = gone.map(|(_, r)| r.clone().change(ChangeKind::Removed));
    let others = new.iter().filter_map(|(name, resource)| match old.get(name) {
        None => Some(resource.clone().change(ChangeKind::Added)),
        Some(before) if before != resource => Some(resource.clone().change(ChangeKind::Modified)),
        Some(_) => None,
    });
    removed.chain(others).collect()
}

/// Sends; false when the watcher has gone.
async fn send(sender: &Sender, change: Change) -> bool {
    sender.send(Ok(v1::WatchResponse { change: Some(change) })).await.is_ok()
}

#[tonic::async_trait]
impl<B: Backend> EventService for Services<B> {
    type WatchStream = ReceiverStream<std::result::Result<v1::WatchResponse, Status>>;

    async fn list_events(&self, request: Request<v1::ListEventsRequest>) -> Answer<v1::ListEventsResponse> {
        let r = request.get_ref();
        let key = |e: &Event| format!("{:020}", e.sequence);
        let all = self.backend.events().history();
        let (events, next_page_token) = page("events", all, key, r.page_size, &r.page_token)?;
        let events = events.iter().map(convert::event).collect();
        Ok(Response::new(v1::ListEventsResponse { events, next_page_token }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let r = request.into_inner();
        let only = if r.array.is_empty() { None } else { Some(array_name(&r.array)?) };
        let (sender, receiver) = mpsc::channel(16);
        let services = self.clone();
        tokio::spawn(async move {
            let mut stop = services.stopping.clone();
            let end = tokio::select! {
                end = follow(&services, &r, only.as_deref(), &sender) => end,
                _ = stop.wait_for(|s| *s) => Err(Error::new(Kind::Unavailable, "raidd is stopping; watch again when it is back")),
                () = sender.closed() => Ok(()),
            };
            if let Err(e) = end {
                // The watcher may have gone at the same moment.
                let _ = sender.send(Err(e.into())).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Sends until the watcher goes (`Ok`) or nothing more can come.
async fn follow<B: Backend>(
    services: &Services<B>,
    r: &v1::WatchRequest,
    only: Option<&str>,
    sender: &Sender,
) -> Result<(), Error> {
    let backend = &*services.backend;
    let about = |event: &Event| {
        only.is_none_or(|only| Name::parse(&event.resource).is_some_and(|name| name.array() == Some(only)))
    };
    let (history, mut events) = backend.events().subscribe();
    let mut revision = backend.revision();
    revision.mark_unchanged();
    let mut last = Snapshot::new();
    if r.resources {
        last = snapshot(backend, only);
        for resource in last.values() {
            if !send(sender, resource.clone().change(ChangeKind::Existing)).await {
                return Ok(());
            }
        }
        if !send(sender, Change::Synced(v1::Synced {})).await {
            return Ok(());
        }
    }
    let history: Vec<&Event> = history.iter().filter(|e| about(e)).collect();
    for event in &history[history.len().saturating_sub(r.history as usize)..] {
        if !send(sender, Change::Event(convert::event(event))).await {
            return Ok(());
        }
    }
    let gone = || Error::new(Kind::Unavailable, "raidd is stopping; watch again when it is back");
    let mut next_round = tokio::time::Instant::now();
    loop {
        let changed = async {
            tokio::time::sleep_until(next_round).await;
            revision.changed().await
        };
        let changes = tokio::select! {
            event = events.recv() => match event {
                Ok(event) if about(&event) => vec![Change::Event(convert::event(&event))],
                Ok(_) => Vec::new(),
                Err(RecvError::Lagged(events)) => vec![Change::Missed(v1::Missed { events })],
                Err(RecvError::Closed) => return Err(gone()),
            },
            changed = changed, if r.resources => {
                changed.map_err(|_| gone())?;
                let new = snapshot(backend, only);
                let changes = difference(&last, &new);
                last = new;
                next_round = tokio::time::Instant::now() + PACE;
                changes
            }
        };
        for change in changes {
            if !send(sender, change).await {
                return Ok(());
            }
        }
    }
}
