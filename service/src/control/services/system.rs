//! The daemon itself, and faults on purpose.

use raid_proto::v1;
use raid_proto::v1::fault_service_server::FaultService;
use raid_proto::v1::system_service_server::SystemService;
use tonic::{Request, Response, Status};

use super::{Services, fault_name, member_name, settled};
use crate::control::backend::{Backend, Fault, Result};
use crate::control::convert;
use crate::control::error::{Error, Kind};
use crate::control::paging::page;

type Answer<T> = std::result::Result<Response<T>, Status>;

fn enabled<B: Backend>(backend: &B) -> Result<()> {
    if backend.system().faults_enabled {
        return Ok(());
    }
    let message = "this raidd does not inject faults; start it with --enable-faults, and never where data matters";
    Err(Error::new(Kind::PermissionDenied, message).because("FAULTS_DISABLED"))
}

fn get_fault<B: Backend>(backend: &B, id: u64) -> Result<v1::Fault> {
    backend.faults().iter().find(|f| f.id == id).map(convert::fault).ok_or_else(|| no_fault(id))
}

fn no_fault(id: u64) -> Error {
    Error::new(Kind::NotFound, format!("there is no fault {id}; 'raidctl fault list' shows those in force"))
        .because("FAULT_NOT_FOUND")
        .with("fault", id)
}

#[tonic::async_trait]
impl<B: Backend> SystemService for Services<B> {
    async fn get_system(&self, _request: Request<v1::GetSystemRequest>) -> Answer<v1::System> {
        Ok(Response::new(convert::system(&self.backend.system())))
    }
}

#[tonic::async_trait]
impl<B: Backend> FaultService for Services<B> {
    async fn add_fault(&self, request: Request<v1::AddFaultRequest>) -> Answer<v1::Fault> {
        enabled(&*self.backend)?;
        let r = request.get_ref();
        let (array, member) = member_name(&r.member)?;
        let spec = convert::fault_spec(&r.spec.unwrap_or_default())?;
        self.change(&r.request_id, r, |b| async move {
            let id = b.add_fault(&array, member, spec).await?;
            settled(&*b, |b| get_fault(b, id)).await
        })
        .await
    }

    async fn list_faults(&self, request: Request<v1::ListFaultsRequest>) -> Answer<v1::ListFaultsResponse> {
        enabled(&*self.backend)?;
        let r = request.get_ref();
        let key = |f: &Fault| format!("{:020}", f.id);
        let (faults, next_page_token) = page("faults", self.backend.faults(), key, r.page_size, &r.page_token)?;
        let faults = faults.iter().map(convert::fault).collect();
        Ok(Response::new(v1::ListFaultsResponse { faults, next_page_token }))
    }

    async fn clear_faults(&self, request: Request<v1::ClearFaultsRequest>) -> Answer<v1::ClearFaultsResponse> {
        enabled(&*self.backend)?;
        let r = request.get_ref();
        let id = if r.name.is_empty() { None } else { Some(fault_name(&r.name)?) };
        self.change(&r.request_id, r, |b| async move {
            match (id, b.clear_faults(id).await?) {
                (Some(id), 0) => Err(no_fault(id)),
                (_, cleared) => Ok(v1::ClearFaultsResponse { cleared: cleared as u32 }),
            }
        })
        .await
    }
}
