//! The connection to raidd, and what all commands do with it.

use std::path::Path;
use std::time::Duration;

use raid_proto::names::Name;
use raid_proto::v1;
use raid_proto::v1::array_service_client::ArrayServiceClient;
use raid_proto::v1::event_service_client::EventServiceClient;
use raid_proto::v1::export_service_client::ExportServiceClient;
use raid_proto::v1::fault_service_client::FaultServiceClient;
use raid_proto::v1::member_service_client::MemberServiceClient;
use raid_proto::v1::operation_service_client::OperationServiceClient;
use raid_proto::v1::system_service_client::SystemServiceClient;
use raid_proto::v1::volume_service_client::VolumeServiceClient;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use crate::error::{Exit, Failure, Result};

/// Where sockets are looked for: the quick start's below this folder, a service's run-time folder, and what `raidd serve`
/// takes by itself. `--help` names them too.
pub const SOCKETS: [&str; 3] = ["raidd-data/control.sock", "/run/raidd/control.sock", "/var/lib/raidd/control.sock"];

/// A connection.
pub struct Client {
    channel: Channel,
    request_id: Option<Uuid>,
}

/// Where to connect to: the option, the environment, the first of [`SOCKETS`] that is there.
fn address(option: Option<String>) -> Result<String> {
    let named = option.or_else(|| std::env::var("RAIDD_SERVER").ok().filter(|v| !v.is_empty()));
    let found = || SOCKETS.iter().find(|path| Path::new(path).exists()).map(|path| format!("unix:{path}"));
    named.or_else(found).ok_or_else(|| {
        let message = format!(
            "no raidd was found: there is no socket at {}; start raidd, or say where it listens with --server or RAIDD_SERVER",
            SOCKETS.join(", ")
        );
        Failure::new(Exit::Unavailable, message)
    })
}

impl Client {
    /// Connects.
    pub async fn connect(server: Option<String>, request_id: Option<Uuid>) -> Result<Client> {
        let address = address(server)?;
        let wrong = |why: &str| {
            Failure::new(
                Exit::Usage,
                format!("'{address}' is not a server: {why}; write unix:PATH or http://HOST:PORT"),
            )
        };
        let endpoint = match address.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Endpoint::from_shared(address.clone()),
            Some(("http", _)) => Endpoint::from_shared(address.clone()),
            Some(("https", _)) => return Err(wrong("this raidctl does not speak TLS")),
            _ => return Err(wrong("its kind is not known")),
        };
        let endpoint = endpoint.map_err(|e| wrong(&e.to_string()))?.connect_timeout(Duration::from_secs(5));
        let channel = endpoint.connect().await.map_err(|e| {
            let message = format!(
                "raidd does not answer at {address}: {}; start it, or say where it listens with --server or RAIDD_SERVER",
                root_cause(&e)
            );
            Failure::new(Exit::Unavailable, message)
        })?;
        Ok(Client { channel, request_id })
    }

    /// The ID of this command's change.
    pub fn request_id(&self) -> String {
        self.request_id.unwrap_or_else(Uuid::new_v4).to_string()
    }

    pub fn arrays(&self) -> ArrayServiceClient<Channel> {
        ArrayServiceClient::new(self.channel.clone())
    }

    pub fn members(&self) -> MemberServiceClient<Channel> {
        MemberServiceClient::new(self.channel.clone())
    }

    pub fn volumes(&self) -> VolumeServiceClient<Channel> {
        VolumeServiceClient::new(self.channel.clone())
    }

    pub fn exports(&self) -> ExportServiceClient<Channel> {
        ExportServiceClient::new(self.channel.clone())
    }

    pub fn operations(&self) -> OperationServiceClient<Channel> {
        OperationServiceClient::new(self.channel.clone())
    }

    pub fn events(&self) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel.clone())
    }

    pub fn faults(&self) -> FaultServiceClient<Channel> {
        FaultServiceClient::new(self.channel.clone())
    }

    pub fn system(&self) -> SystemServiceClient<Channel> {
        SystemServiceClient::new(self.channel.clone())
    }

    /// All arrays.
    pub async fn list_arrays(&self) -> Result<Vec<v1::Array>> {
        all_pages(async |page_token| {
            let request = v1::ListArraysRequest { page_size: 0, page_token };
            let page = self.arrays().list_arrays(request).await?.into_inner();
            Ok((page.arrays, page.next_page_token))
        })
        .await
    }

    /// The members of an array, or of all with `-`.
    pub async fn list_members(&self, array: &str) -> Result<Vec<v1::Member>> {
        all_pages(async |page_token| {
            let parent = Name::Array(array.to_owned()).to_string();
            let request = v1::ListMembersRequest { parent, page_size: 0, page_token };
            let page = self.members().list_members(request).await?.into_inner();
            Ok((page.members, page.next_page_token))
        })
        .await
    }

    /// The volumes of an array, or of all with `-`.
    pub async fn list_volumes(&self, array: &str) -> Result<Vec<v1::Volume>> {
        all_pages(async |page_token| {
            let parent = Name::Array(array.to_owned()).to_string();
            let request = v1::ListVolumesRequest { parent, page_size: 0, page_token };
            let page = self.volumes().list_volumes(request).await?.into_inner();
            Ok((page.volumes, page.next_page_token))
        })
        .await
    }

    /// All exports.
    pub async fn list_exports(&self) -> Result<Vec<v1::Export>> {
        all_pages(async |page_token| {
            let request = v1::ListExportsRequest { page_size: 0, page_token };
            let page = self.exports().list_exports(request).await?.into_inner();
            Ok((page.exports, page.next_page_token))
        })
        .await
    }

    /// Running operations and the last that ended.
    pub async fn list_operations(&self) -> Result<Vec<v1::Operation>> {
        all_pages(async |page_token| {
            let request = v1::ListOperationsRequest { page_size: 0, page_token };
            let page = self.operations().list_operations(request).await?.into_inner();
            Ok((page.operations, page.next_page_token))
        })
        .await
    }

    /// All faults.
    pub async fn list_faults(&self) -> Result<Vec<v1::Fault>> {
        all_pages(async |page_token| {
            let request = v1::ListFaultsRequest { page_size: 0, page_token };
            let page = self.faults().list_faults(request).await?.into_inner();
            Ok((page.faults, page.next_page_token))
        })
        .await
    }

    /// The remembered events, oldest first.
    pub async fn list_events(&self) -> Result<Vec<v1::Event>> {
        all_pages(async |page_token| {
            let request = v1::ListEventsRequest { page_size: 1000, page_token };
            let page = self.events().list_events(request).await?.into_inner();
            Ok((page.events, page.next_page_token))
        })
        .await
    }
}

/// Everything that a list has: `page` gets a page by its token, the first one's is empty, and tells the next one's.
async fn all_pages<T>(page: impl AsyncFn(String) -> Result<(Vec<T>, String)>) -> Result<Vec<T>> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let (items, next) = page(token).await?;
        all.extend(items);
        if next.is_empty() {
            return Ok(all);
        }
        token = next;
    }
}

/// The innermost cause: "transport error" alone helps nobody.
fn root_cause(e: &dyn std::error::Error) -> String {
    let mut cause = e;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_pages_are_asked_for_in_turn() {
        let pages = [("", vec![1, 2], "b"), ("b", vec![], "c"), ("c", vec![3], "")];
        let page = async |token: String| {
            let (_, items, next) = pages.iter().find(|p| p.0 == token).expect("a token that was given");
            Ok((items.clone(), next.to_string()))
        };
        assert_eq!(all_pages(page).await.expect("three pages"), [1, 2, 3]);
        let refused = async |_| Err::<(Vec<u8>, String), _>(Failure::new(Exit::Unavailable, "gone"));
        assert!(all_pages(refused).await.is_err());
    }
}
