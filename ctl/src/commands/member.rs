//! `raidctl member`.

use raid_proto::names::Name;
use raid_proto::v1;

use super::{Context, address};
use crate::cli::{Device, Member, MemberName};
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view;

pub async fn run(cx: &Context, command: Member) -> Result<()> {
    let mut service = cx.client.members();
    match command {
        Member::List { array } => {
            let array = array.as_deref().unwrap_or("-");
            let list: Vec<view::Member> = cx.client.list_members(array).await?.into_iter().map(Into::into).collect();
            output::print(cx.format, &list, |list| output::members(list))
        }
        Member::Show(member) => {
            let name = member_name(cx, &member).await?;
            let member = service.get_member(v1::GetMemberRequest { name }).await?.into_inner();
            output::print(cx.format, &view::Member::from(member), output::member)
        }
        Member::Add { array, path, device } => {
            confirm_wipe(cx, &device, &path)?;
            let request = v1::AddMemberRequest {
                request_id: cx.client.request_id(),
                parent: Name::Array(array).to_string(),
                spec: Some(v1::MemberSpec { address: address(&path)? }),
                wipe: device.wipe,
                create_size_bytes: device.size.unwrap_or(0),
            };
            let member = service.add_member(request).await?.into_inner();
            output::print(cx.format, &view::Member::from(member), |m| {
                format!("{} is member {} of array {}: {}, {}\n", m.address, m.number, m.array, m.state, m.reason)
            })
        }
        Member::Fail(member) => {
            let (request_id, name) = (cx.client.request_id(), member_name(cx, &member).await?);
            let member = service.fail_member(v1::FailMemberRequest { request_id, name }).await?.into_inner();
            output::print(cx.format, &view::Member::from(member), |m| {
                format!("member {} of array {} is {}: {}\n", m.number, m.array, m.state, m.reason)
            })
        }
        Member::Remove(member) => {
            let (request_id, name) = (cx.client.request_id(), member_name(cx, &member).await?);
            service.remove_member(v1::RemoveMemberRequest { request_id, name }).await?;
            super::system::done(cx, &format!("member {} is no longer part of array {}", member.member, member.array))
        }
        Member::Replace { member, with, device, wait } => {
            if let Some(with) = &with {
                confirm_wipe(cx, &device, with)?;
            } else if device.wipe || device.size.is_some() {
                return Err(Failure::new(
                    Exit::Usage,
                    "--size and --wipe are about the new device; name it with --with",
                ));
            }
            let request = v1::ReplaceMemberRequest {
                request_id: cx.client.request_id(),
                name: member_name(cx, &member).await?,
                with: with.as_deref().map_or(Ok(String::new()), address)?,
                wipe: device.wipe,
                create_size_bytes: device.size.unwrap_or(0),
            };
            let operation = view::Operation::from(service.replace_member(request).await?.into_inner());
            if operation.id.is_empty() {
                return output::print(cx.format, &operation, |o| {
                    format!("{} of {}: {}, {}\n", o.kind, o.target, o.state, o.reason)
                });
            }
            if !wait {
                return output::print(cx.format, &operation, |o| {
                    format!("{}\n'raidctl operation watch {}' shows how it goes\n", output::operation_line(o), o.id)
                });
            }
            cx.wait_for(vec![operation.id.clone()]).await?;
            let name = Name::Operation(operation.id).to_string();
            let operation = cx.client.operations().get_operation(v1::GetOperationRequest { name }).await?.into_inner();
            output::print(cx.format, &view::Operation::from(operation), |o| output::operation_line(o) + "\n")
        }
    }
}

fn confirm_wipe(cx: &Context, device: &Device, path: &str) -> Result<()> {
    if device.wipe { cx.confirm(&format!("destroy all data on {path}")) } else { Ok(()) }
}

/// A member's resource name, from its number or the end of its address.
pub async fn member_name(cx: &Context, member: &MemberName) -> Result<String> {
    let number = match member.member.parse::<u16>() {
        Ok(number) => number,
        Err(_) => {
            let list: Vec<view::Member> =
                cx.client.list_members(&member.array).await?.into_iter().map(Into::into).collect();
            pick(&list, &member.array, &member.member)?
        }
    };
    Ok(Name::Member(member.array.clone(), number).to_string())
}

/// The one member whose address is this, or ends with it at a `/` or anywhere.
fn pick(list: &[view::Member], array: &str, end: &str) -> Result<u16> {
    let matching = |test: &dyn Fn(&str) -> bool| list.iter().filter(|m| test(&m.address)).collect::<Vec<_>>();
    let mut found = matching(&|a| a == end);
    if found.is_empty() {
        found = matching(&|a| a.strip_suffix(end).is_some_and(|rest| rest.ends_with('/')));
    }
    if found.is_empty() {
        found = matching(&|a| a.ends_with(end));
    }
    match found.as_slice() {
        [one] => Ok(one.number as u16),
        [] => {
            let message = format!(
                "array {array} has no member whose address ends with '{end}'; 'raidctl member list {array}' shows them"
            );
            Err(Failure::new(Exit::NotFound, message))
        }
        several => {
            let names: Vec<String> = several.iter().map(|m| format!("{} ({})", m.number, m.address)).collect();
            Err(Failure::new(
                Exit::Usage,
                format!("'{end}' could be several members: {}; give the number", names.join(", ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_pick_one_member() {
        let member = |number, address: &str| {
            let spec = Some(v1::MemberSpec { address: address.into() });
            let status = Some(v1::MemberStatus { number, ..Default::default() });
            view::Member::from(v1::Member { name: format!("arrays/pool/members/{number}"), spec, status })
        };
        let list =
            [member(0, "/dev/sda"), member(1, "/dev/vsda"), member(2, "/data/one.img"), member(5, "/more/one.img")];
        assert_eq!(pick(&list, "pool", "/dev/sda").expect("one"), 0);
        assert_eq!(pick(&list, "pool", "sda").expect("one: whole names first"), 0);
        assert_eq!(pick(&list, "pool", "vsda").expect("one"), 1);
        assert_eq!(pick(&list, "pool", "more/one.img").expect("one"), 5);
        assert_eq!(pick(&list, "pool", "one.img").expect_err("two").exit, Exit::Usage);
        assert_eq!(pick(&list, "pool", "sdb").expect_err("none").exit, Exit::NotFound);
    }
}
