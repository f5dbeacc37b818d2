//! Operations.

use std::time::{Duration, UNIX_EPOCH};

use raid_proto::v1;
use raid_proto::v1::operation_service_server::OperationService;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Services, operation_name, settled};
use crate::control::backend::{Backend, Operation, Result};
use crate::control::convert::{self, invalid};
use crate::control::error::{Error, Kind};
use crate::control::paging::page;

type Answer<T> = std::result::Result<Response<T>, Status>;

/// At most one message in this time for one watch. What happens meanwhile is sent as one.
const PACE: Duration = Duration::from_millis(100);

fn find<B: Backend>(backend: &B, id: &str) -> Result<Operation> {
    backend.operations().into_iter().find(|o| o.id == id).ok_or_else(|| Error::no_operation(id))
}

/// One operation, as a message.
pub(super) fn get<B: Backend>(backend: &B, id: &str) -> Result<v1::Operation> {
    Ok(convert::operation(&find(backend, id)?))
}

/// Oldest first, and stable between two of the same moment.
fn key(o: &Operation) -> String {
    let since = o.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:024}/{}", since.as_nanos(), o.id)
}

fn stopping() -> Error {
    Error::new(Kind::Unavailable, "raidd is stopping; the operation goes on when it is started again")
}

#[tonic::async_trait]
impl<B: Backend> OperationService for Services<B> {
    type WatchOperationStream = ReceiverStream<std::result::Result<v1::Operation, Status>>;

    async fn get_operation(&self, request: Request<v1::GetOperationRequest>) -> Answer<v1::Operation> {
        let id = operation_name(&request.get_ref().name)?;
        Ok(Response::new(get(&*self.backend, &id)?))
    }

    async fn list_operations(&self, request: Request<v1::ListOperationsRequest>) -> Answer<v1::ListOperationsResponse> {
        let r = request.get_ref();
        let all = self.backend.operations();
        let (operations, next_page_token) = page("operations", all, key, r.page_size, &r.page_token)?;
        let operations = operations.iter().map(convert::operation).collect();
        Ok(Response::new(v1::ListOperationsResponse { operations, next_page_token }))
    }

    async fn watch_operation(&self, request: Request<v1::WatchOperationRequest>) -> Answer<Self::WatchOperationStream> {
        let id = operation_name(&request.get_ref().name)?;
        let (backend, mut stop) = (self.backend.clone(), self.stopping.clone());
        let mut revision = backend.revision();
        revision.mark_unchanged();
        let mut last = find(&*backend, &id)?;
        let (send, receive) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                if send.send(Ok(convert::operation(&last))).await.is_err() || last.ended() {
                    return;
                }
                tokio::time::sleep(PACE).await;
                loop {
                    let changed = tokio::select! {
                        changed = revision.changed() => changed.is_ok(),
                        _ = stop.wait_for(|s| *s) => false,
                        () = send.closed() => return,
                    };
                    let now = if changed { find(&*backend, &id) } else { Err(stopping()) };
                    match now {
                        Ok(now) if now == last => {}
                        Ok(now) => {
                            last = now;
                            break;
                        }
                        Err(e) => {
                            // The watcher may have gone at the same moment.
                            let _ = send.send(Err(e.into())).await;
                            return;
                        }
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn wait_operation(&self, request: Request<v1::WaitOperationRequest>) -> Answer<v1::Operation> {
        let r = request.get_ref();
        let id = operation_name(&r.name)?;
        let timeout = match r.timeout {
            None => None,
            Some(t) => Some(Duration::try_from(t).map_err(|_| {
                Status::from(invalid(
                    "TIMEOUT_OUT_OF_RANGE",
                    "a timeout cannot be negative; leave it out to wait for the end",
                ))
            })?),
        };
        let deadline = timeout.and_then(|t| tokio::time::Instant::now().checked_add(t));
        let mut revision = self.backend.revision();
        let mut stop = self.stopping.clone();
        loop {
            revision.mark_unchanged();
            let now = find(&*self.backend, &id)?;
            if now.ended() {
                return Ok(Response::new(convert::operation(&now)));
            }
            let late = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = revision.changed() => changed.map_err(|_| Status::from(stopping()))?,
                _ = stop.wait_for(|s| *s) => return Err(stopping().into()),
                () = late => return Ok(Response::new(convert::operation(&now))),
            }
        }
    }

    async fn cancel_operation(&self, request: Request<v1::CancelOperationRequest>) -> Answer<v1::Operation> {
        let r = request.get_ref();
        let id = operation_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.cancel_operation(&id).await?;
            settled(&*b, |b| get(b, &id)).await
        })
        .await
    }

    async fn pause_operation(&self, request: Request<v1::PauseOperationRequest>) -> Answer<v1::Operation> {
        let r = request.get_ref();
        let id = operation_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.pause_operation(&id, true).await?;
            settled(&*b, |b| get(b, &id)).await
        })
        .await
    }

    async fn resume_operation(&self, request: Request<v1::ResumeOperationRequest>) -> Answer<v1::Operation> {
        let r = request.get_ref();
        let id = operation_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.pause_operation(&id, false).await?;
            settled(&*b, |b| get(b, &id)).await
        })
        .await
    }
}
