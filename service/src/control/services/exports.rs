//! Exports.

use std::net::SocketAddr;

use raid_proto::v1;
use raid_proto::v1::export_service_server::ExportService;
use tonic::{Request, Response, Status};

use super::{Services, export_name, nqn, settled, volume_name};
use crate::control::backend::{Backend, Export, ExportSpec, Hosts, Result};
use crate::control::convert::{self, invalid};
use crate::control::error::Error;
use crate::control::paging::page;

type Answer<T> = std::result::Result<Response<T>, Status>;

fn get<B: Backend>(backend: &B, nqn: &str, nsid: u32) -> Result<v1::Export> {
    let exports = backend.exports();
    let export = exports.iter().find(|e| e.nqn == nqn && e.nsid == nsid);
    Ok(convert::export(export.ok_or_else(|| Error::no_export(nqn, nsid))?))
}

fn spec(spec: &v1::ExportSpec) -> Result<ExportSpec> {
    let (array, volume) = volume_name(&spec.volume)?;
    nqn(&spec.nqn)?;
    spec.hosts.iter().try_for_each(|host| nqn(host))?;
    let hosts = match (spec.any_host, spec.hosts.is_empty()) {
        (true, true) => Hosts::Any,
        (false, false) => Hosts::Only(spec.hosts.clone()),
        (true, false) => {
            return Err(invalid("HOSTS_AMBIGUOUS", "any host may connect, and some are named; choose one of the two"));
        }
        (false, true) => {
            return Err(invalid("HOSTS_MISSING", "nobody may connect; name the hosts' NQNs, or let any host connect"));
        }
    };
    if spec.listen.is_empty() {
        return Err(invalid(
            "LISTEN_MISSING",
            "the export has no address to listen on; give one such as 127.0.0.1:4420",
        ));
    }
    let listen = spec
        .listen
        .iter()
        .map(|text| {
            text.parse::<SocketAddr>().map_err(|_| {
                let message =
                    format!("'{text}' is not ADDRESS:PORT; write it like 192.0.2.7:4420 or [2001:db8::7]:4420");
                invalid("LISTEN_MALFORMED", message).with("listen", text)
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let nsid = (spec.nsid != 0).then_some(spec.nsid);
    if nsid.is_some_and(|n| n > 0xffff_fffe) {
        return Err(invalid("NSID_OUT_OF_RANGE", "FFFFFFFFh stands for all namespaces; choose a smaller namespace ID"));
    }
    Ok(ExportSpec { array, volume, nqn: spec.nqn.clone(), nsid, listen, hosts })
}

#[tonic::async_trait]
impl<B: Backend> ExportService for Services<B> {
    async fn get_export(&self, request: Request<v1::GetExportRequest>) -> Answer<v1::Export> {
        let (nqn, nsid) = export_name(&request.get_ref().name)?;
        Ok(Response::new(get(&*self.backend, &nqn, nsid)?))
    }

    async fn list_exports(&self, request: Request<v1::ListExportsRequest>) -> Answer<v1::ListExportsResponse> {
        let r = request.get_ref();
        let key = |e: &Export| format!("{}/{:010}", e.nqn, e.nsid);
        let (exports, next_page_token) = page("exports", self.backend.exports(), key, r.page_size, &r.page_token)?;
        let exports = exports.iter().map(convert::export).collect();
        Ok(Response::new(v1::ListExportsResponse { exports, next_page_token }))
    }

    async fn create_export(&self, request: Request<v1::CreateExportRequest>) -> Answer<v1::Export> {
        let r = request.get_ref();
        let spec = spec(&r.spec.clone().unwrap_or_default())?;
        self.change(&r.request_id, r, |b| async move {
            let nqn = spec.nqn.clone();
            let nsid = b.create_export(spec).await?;
            settled(&*b, |b| get(b, &nqn, nsid)).await
        })
        .await
    }

    async fn delete_export(&self, request: Request<v1::DeleteExportRequest>) -> Answer<v1::DeleteExportResponse> {
        let r = request.get_ref();
        let (nqn, nsid) = export_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.delete_export(&nqn, nsid).await?;
            Ok(v1::DeleteExportResponse {})
        })
        .await
    }
}
