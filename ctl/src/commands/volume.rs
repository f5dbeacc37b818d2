//! `raidctl volume`.

use raid_proto::names::Name;
use raid_proto::v1;

use super::{Context, volume_of};
use crate::cli::{Policy, Volume, VolumeCreate};
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view;

pub async fn run(cx: &Context, command: Volume) -> Result<()> {
    let mut service = cx.client.volumes();
    match command {
        Volume::Create(arguments) => create(cx, arguments).await,
        Volume::List { array } => {
            let array = array.as_deref().unwrap_or("-");
            let list: Vec<view::Volume> = cx.client.list_volumes(array).await?.into_iter().map(Into::into).collect();
            output::print(cx.format, &list, |list| output::volumes(list))
        }
        Volume::Show(name) => {
            let (array, volume) = volume_of(&name)?;
            let name = Name::Volume(array, volume).to_string();
            let volume = service.get_volume(v1::GetVolumeRequest { name }).await?.into_inner();
            output::print(cx.format, &view::Volume::from(volume), output::volume)
        }
        Volume::Delete(name) => {
            let (array, volume) = volume_of(&name)?;
            cx.confirm(&format!("delete volume {array}/{volume} and all data on it"))?;
            let name = Name::Volume(array.clone(), volume.clone()).to_string();
            let request_id = cx.client.request_id();
            service.delete_volume(v1::DeleteVolumeRequest { request_id, name }).await?;
            super::system::done(cx, &format!("volume {array}/{volume} is deleted"))
        }
    }
}

async fn create(cx: &Context, arguments: VolumeCreate) -> Result<()> {
    let (array, volume_id) = volume_of(&arguments.name)?;
    let small = |what: &str, size: u64| {
        u32::try_from(size).map_err(|_| Failure::new(Exit::Usage, format!("a {what} of {size} bytes is too large")))
    };
    let policy = match arguments.policy {
        None => v1::Policy::Unspecified,
        Some(Policy::None) => v1::Policy::None,
        Some(Policy::Resync) => v1::Policy::Resync,
        Some(Policy::Bitmap) => v1::Policy::Bitmap,
    };
    let request = v1::CreateVolumeRequest {
        request_id: cx.client.request_id(),
        parent: Name::Array(array.clone()).to_string(),
        volume_id,
        spec: Some(v1::VolumeSpec {
            level: arguments.level.into(),
            width: arguments.width.unwrap_or(0),
            chunk_bytes: small("chunk", arguments.chunk)?,
            size_bytes: arguments.size.unwrap_or(0),
            block_size_bytes: small("block", arguments.block_size)?,
            policy: policy.into(),
        }),
    };
    let mut volume = cx.client.volumes().create_volume(request).await?.into_inner();
    if arguments.wait {
        cx.wait_for_array(&array).await?;
        volume = cx.client.volumes().get_volume(v1::GetVolumeRequest { name: volume.name }).await?.into_inner();
    }
    output::print(cx.format, &view::Volume::from(volume), |v| {
        let size = crate::size::show(v.size_bytes);
        format!("volume {}/{} is created: {size}, {}, {} wide, {}\n", v.array, v.name, v.level, v.width, v.state)
    })
}
