//! Arrays, their members and their volumes.

use raid_proto::names::Name;
use raid_proto::v1;
use raid_proto::v1::array_service_server::ArrayService;
use raid_proto::v1::member_service_server::MemberService;
use raid_proto::v1::volume_service_server::VolumeService;
use tonic::{Request, Response, Status};

use super::{Services, array, array_name, member_name, new_id, parents, settled, volume_name};
use crate::control::backend::{ArraySpec, Backend, Member, NewDevice, Result, Volume};
use crate::control::convert::{self, invalid};
use crate::control::error::{Error, Kind};
use crate::control::paging::page;

type Answer<T> = std::result::Result<Response<T>, Status>;

fn get_array<B: Backend>(backend: &B, name: &str) -> Result<v1::Array> {
    Ok(convert::array(&array(backend, name)?))
}

fn get_member<B: Backend>(backend: &B, name: &str, number: u16) -> Result<v1::Member> {
    let array = array(backend, name)?;
    let member = array.members.iter().find(|m| m.number == number).ok_or_else(|| Error::no_member(name, number))?;
    Ok(convert::member(name, member))
}

fn get_volume<B: Backend>(backend: &B, name: &str, volume: &str) -> Result<v1::Volume> {
    let array = array(backend, name)?;
    let volume = array.volumes.iter().find(|v| v.name == volume).ok_or_else(|| Error::no_volume(name, volume))?;
    Ok(convert::volume(name, volume))
}

fn addresses(members: &[String]) -> Result<()> {
    if members.is_empty() {
        return Err(invalid("MEMBERS_MISSING", "no members are named; give the paths of files or block devices"));
    }
    members.iter().try_for_each(|m| address(m))
}

fn address(member: &str) -> Result<()> {
    if member.is_empty() || member.contains('\0') {
        return Err(invalid("ADDRESS_MALFORMED", format!("'{member}' is not a path; name a file or block device")));
    }
    Ok(())
}

fn new_device(at: &str, wipe: bool, create_size: u64) -> Result<NewDevice> {
    address(at)?;
    Ok(NewDevice { address: at.to_owned(), wipe, create_size: (create_size != 0).then_some(create_size) })
}

fn array_spec(r: &v1::CreateArrayRequest) -> Result<ArraySpec> {
    new_id("an array", &r.array_id)?;
    let spec = r.spec.clone().unwrap_or_default();
    addresses(&spec.members)?;
    let out_of_range =
        |what: &str, n: u32| invalid("OUT_OF_RANGE", format!("{n} {what} are not possible; choose fewer"));
    if spec.spares as usize >= spec.members.len() {
        return Err(invalid(
            "TOO_MANY_SPARES",
            format!(
                "{} of {} members cannot all be spares; name more members or fewer spares",
                spec.spares,
                spec.members.len()
            ),
        ));
    }
    Ok(ArraySpec {
        name: r.array_id.clone(),
        spares: u16::try_from(spec.spares).map_err(|_| out_of_range("spares", spec.spares))?,
        members: spec.members,
        extent: (spec.extent_bytes != 0).then_some(spec.extent_bytes),
        shards: match spec.shards {
            0 => None,
            n => Some(u16::try_from(n).map_err(|_| out_of_range("shards", n))?),
        },
        wipe: r.wipe,
        create_size: (r.create_size_bytes != 0).then_some(r.create_size_bytes),
    })
}

#[tonic::async_trait]
impl<B: Backend> ArrayService for Services<B> {
    async fn get_array(&self, request: Request<v1::GetArrayRequest>) -> Answer<v1::Array> {
        let name = array_name(&request.get_ref().name)?;
        Ok(Response::new(convert::array(&self.array(&name)?)))
    }

    async fn list_arrays(&self, request: Request<v1::ListArraysRequest>) -> Answer<v1::ListArraysResponse> {
        let r = request.get_ref();
        let (arrays, next_page_token) =
            page("arrays", self.backend.arrays(), |a| a.name.clone(), r.page_size, &r.page_token)?;
        let arrays = arrays.iter().map(convert::array).collect();
        Ok(Response::new(v1::ListArraysResponse { arrays, next_page_token }))
    }

    async fn create_array(&self, request: Request<v1::CreateArrayRequest>) -> Answer<v1::Array> {
        let r = request.get_ref();
        let spec = array_spec(r)?;
        self.change(&r.request_id, r, |b| async move {
            let name = spec.name.clone();
            b.create_array(spec).await?;
            settled(&*b, |b| get_array(b, &name)).await
        })
        .await
    }

    async fn assemble_array(&self, request: Request<v1::AssembleArrayRequest>) -> Answer<v1::Array> {
        let r = request.get_ref();
        addresses(&r.members)?;
        let (members, force) = (r.members.clone(), r.force);
        self.change(&r.request_id, r, |b| async move {
            let name = b.assemble_array(members, force).await?;
            settled(&*b, |b| get_array(b, &name)).await
        })
        .await
    }

    async fn stop_array(&self, request: Request<v1::StopArrayRequest>) -> Answer<v1::StopArrayResponse> {
        let r = request.get_ref();
        let name = array_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.stop_array(&name).await?;
            Ok(v1::StopArrayResponse {})
        })
        .await
    }

    async fn delete_array(&self, request: Request<v1::DeleteArrayRequest>) -> Answer<v1::DeleteArrayResponse> {
        let r = request.get_ref();
        let name = array_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.delete_array(&name).await?;
            Ok(v1::DeleteArrayResponse {})
        })
        .await
    }
}

#[tonic::async_trait]
impl<B: Backend> MemberService for Services<B> {
    async fn get_member(&self, request: Request<v1::GetMemberRequest>) -> Answer<v1::Member> {
        let (array, number) = member_name(&request.get_ref().name)?;
        Ok(Response::new(get_member(&*self.backend, &array, number)?))
    }

    async fn list_members(&self, request: Request<v1::ListMembersRequest>) -> Answer<v1::ListMembersResponse> {
        let r = request.get_ref();
        let all: Vec<_> = parents(&*self.backend, &r.parent)?
            .into_iter()
            .flat_map(|a| a.members.into_iter().map(move |m| (a.name.clone(), m)))
            .collect();
        let key = |(array, m): &(String, _)| member_key(array, m);
        let (members, next_page_token) = page("members", all, key, r.page_size, &r.page_token)?;
        let members = members.iter().map(|(array, m)| convert::member(array, m)).collect();
        Ok(Response::new(v1::ListMembersResponse { members, next_page_token }))
    }

    async fn add_member(&self, request: Request<v1::AddMemberRequest>) -> Answer<v1::Member> {
        let r = request.get_ref();
        let array = array_name(&r.parent)?;
        let device = new_device(&r.spec.clone().unwrap_or_default().address, r.wipe, r.create_size_bytes)?;
        self.change(&r.request_id, r, |b| async move {
            let number = b.add_member(&array, device).await?;
            settled(&*b, |b| get_member(b, &array, number)).await
        })
        .await
    }

    async fn fail_member(&self, request: Request<v1::FailMemberRequest>) -> Answer<v1::Member> {
        let r = request.get_ref();
        let (array, number) = member_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.fail_member(&array, number).await?;
            settled(&*b, |b| get_member(b, &array, number)).await
        })
        .await
    }

    async fn remove_member(&self, request: Request<v1::RemoveMemberRequest>) -> Answer<v1::RemoveMemberResponse> {
        let r = request.get_ref();
        let (array, number) = member_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            b.remove_member(&array, number).await?;
            Ok(v1::RemoveMemberResponse {})
        })
        .await
    }

    async fn replace_member(&self, request: Request<v1::ReplaceMemberRequest>) -> Answer<v1::Operation> {
        let r = request.get_ref();
        let (array, number) = member_name(&r.name)?;
        let with = match r.with.as_str() {
            "" => None,
            at => Some(new_device(at, r.wipe, r.create_size_bytes)?),
        };
        self.change(&r.request_id, r, |b| async move {
            let id = b.replace_member(&array, number, with).await?;
            if id.is_empty() {
                return Ok(convert::nothing_to_rebuild(&array, number));
            }
            settled(&*b, |b| super::operations::get(b, &id)).await
        })
        .await
    }
}

#[tonic::async_trait]
impl<B: Backend> VolumeService for Services<B> {
    async fn get_volume(&self, request: Request<v1::GetVolumeRequest>) -> Answer<v1::Volume> {
        let (array, volume) = volume_name(&request.get_ref().name)?;
        Ok(Response::new(get_volume(&*self.backend, &array, &volume)?))
    }

    async fn list_volumes(&self, request: Request<v1::ListVolumesRequest>) -> Answer<v1::ListVolumesResponse> {
        let r = request.get_ref();
        let all: Vec<_> = parents(&*self.backend, &r.parent)?
            .into_iter()
            .flat_map(|a| a.volumes.into_iter().map(move |v| (a.name.clone(), v)))
            .collect();
        let key = |(array, v): &(String, _)| volume_key(array, v);
        let (volumes, next_page_token) = page("volumes", all, key, r.page_size, &r.page_token)?;
        let volumes = volumes.iter().map(|(array, v)| convert::volume(array, v)).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes, next_page_token }))
    }

    async fn create_volume(&self, request: Request<v1::CreateVolumeRequest>) -> Answer<v1::Volume> {
        let r = request.get_ref();
        let array = array_name(&r.parent)?;
        new_id("a volume", &r.volume_id)?;
        let spec = convert::volume_spec(r.volume_id.clone(), &r.spec.unwrap_or_default())?;
        self.change(&r.request_id, r, |b| async move {
            let name = spec.name.clone();
            b.create_volume(&array, spec).await?;
            settled(&*b, |b| get_volume(b, &array, &name)).await
        })
        .await
    }

    async fn delete_volume(&self, request: Request<v1::DeleteVolumeRequest>) -> Answer<v1::DeleteVolumeResponse> {
        let r = request.get_ref();
        let (array, volume) = volume_name(&r.name)?;
        self.change(&r.request_id, r, |b| async move {
            not_exported(&*b, &array, &volume)?;
            b.delete_volume(&array, &volume).await?;
            Ok(v1::DeleteVolumeResponse {})
        })
        .await
    }
}

fn member_key(array: &str, m: &Member) -> String {
    format!("{array}/{:05}", m.number)
}

fn volume_key(array: &str, v: &Volume) -> String {
    format!("{array}/{:010}", v.number)
}

fn not_exported<B: Backend>(backend: &B, array: &str, volume: &str) -> Result<()> {
    match backend.exports().into_iter().find(|e| e.array == array && e.volume == volume) {
        None => Ok(()),
        Some(export) => {
            let name = Name::Export(export.nqn, export.nsid);
            let message = format!("volume '{array}/{volume}' is exported as {name}; delete the export first");
            Err(Error::new(Kind::FailedPrecondition, message).because("VOLUME_EXPORTED").with("export", name))
        }
    }
}
