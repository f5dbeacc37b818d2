//! `raidctl array`.

use raid_proto::names::Name;
use raid_proto::v1;

use super::{Context, address};
use crate::cli::{Array, ArrayCreate};
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view;

pub async fn run(cx: &Context, command: Array) -> Result<()> {
    match command {
        Array::Create(arguments) => create(cx, arguments).await,
        Array::List => {
            let list: Vec<view::Array> = cx.client.list_arrays().await?.into_iter().map(Into::into).collect();
            output::print(cx.format, &list, |list| output::arrays(list))
        }
        Array::Show { array, check } => {
            let details = details(cx, &array).await?;
            let state = details.array.state.clone();
            output::print(cx.format, &details, output::array)?;
            if check { verdict(&details.array.name, &state, &details.array.reason) } else { Ok(()) }
        }
        Array::Assemble { members, force } => {
            let members = members.iter().map(|m| address(m)).collect::<Result<_>>()?;
            let request_id = cx.client.request_id();
            let request = v1::AssembleArrayRequest { request_id, members, force };
            let array = cx.client.arrays().assemble_array(request).await?.into_inner();
            output::print(cx.format, &view::Array::from(array), |a| {
                format!("array {} is assembled: {}, {}\n", a.name, a.state, a.reason)
            })
        }
        Array::Stop { array } => {
            let (request_id, name) = (cx.client.request_id(), Name::Array(array.clone()).to_string());
            cx.client.arrays().stop_array(v1::StopArrayRequest { request_id, name }).await?;
            super::system::done(cx, &format!("array {array} is stopped; its members are free"))
        }
        Array::Delete { array } => {
            cx.confirm(&format!("delete array {array} and all data on it"))?;
            let (request_id, name) = (cx.client.request_id(), Name::Array(array.clone()).to_string());
            cx.client.arrays().delete_array(v1::DeleteArrayRequest { request_id, name }).await?;
            super::system::done(cx, &format!("array {array} is deleted"))
        }
    }
}

async fn create(cx: &Context, arguments: ArrayCreate) -> Result<()> {
    if arguments.wipe {
        cx.confirm(&format!("destroy all data on {}", arguments.members.join(", ")))?;
    }
    let members = arguments.members.iter().map(|m| address(m)).collect::<Result<_>>()?;
    let request = v1::CreateArrayRequest {
        request_id: cx.client.request_id(),
        array_id: arguments.name.clone(),
        spec: Some(v1::ArraySpec {
            members,
            spares: arguments.spares,
            extent_bytes: arguments.extent.unwrap_or(0),
            shards: arguments.shards.unwrap_or(0),
        }),
        wipe: arguments.wipe,
        create_size_bytes: arguments.size.unwrap_or(0),
    };
    let mut array = cx.client.arrays().create_array(request).await?.into_inner();
    if arguments.wait {
        cx.wait_for_array(&arguments.name).await?;
        array = cx.client.arrays().get_array(v1::GetArrayRequest { name: array.name }).await?.into_inner();
    }
    output::print(cx.format, &view::Array::from(array), |a| {
        let spare = if a.spare_members > 0 { format!(" and {} spare", a.spare_members) } else { String::new() };
        let free = crate::size::show(a.free_bytes);
        let members = output::count(a.active_members.into(), "member");
        format!("array {} is created with {members}{spare}, {free} free\n", a.name)
    })
}

async fn details(cx: &Context, array: &str) -> Result<view::ArrayDetails> {
    let name = Name::Array(array.to_owned()).to_string();
    let found = cx.client.arrays().get_array(v1::GetArrayRequest { name }).await?.into_inner();
    let belongs = |o: &view::Operation| o.target.split(['/', ' ']).next() == Some(array);
    Ok(view::ArrayDetails {
        array: found.into(),
        member_list: cx.client.list_members(array).await?.into_iter().map(Into::into).collect(),
        volume_list: cx.client.list_volumes(array).await?.into_iter().map(Into::into).collect(),
        operation_list: cx
            .client
            .list_operations()
            .await?
            .into_iter()
            .map(view::Operation::from)
            .filter(belongs)
            .collect(),
    })
}

/// What `--check` makes of a state.
fn verdict(array: &str, state: &str, reason: &str) -> Result<()> {
    let exit = match state {
        "healthy" => return Ok(()),
        "degraded" => Exit::Degraded,
        "rebuilding" => Exit::Rebuilding,
        _ => Exit::Failed,
    };
    Err(Failure::new(exit, format!("array {array} is {state}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_exit_code() {
        assert!(verdict("pool", "healthy", "").is_ok());
        for (state, exit) in [
            ("degraded", 10),
            ("rebuilding", 11),
            ("failed", 12),
            ("assembling", 12),
            ("stopped", 12),
            ("unspecified", 12),
        ] {
            assert_eq!(verdict("pool", state, "why").expect_err("not healthy").exit as u8, exit, "{state}");
        }
    }
}
