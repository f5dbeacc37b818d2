//! `raidctl export`.

use raid_proto::names::Name;
use raid_proto::v1;

use super::{Context, volume_of};
use crate::cli::Export;
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view;

pub async fn run(cx: &Context, command: Export) -> Result<()> {
    let mut service = cx.client.exports();
    match command {
        Export::Create { volume, nqn, nsid, listen, host, any_host } => {
            let (array, volume) = volume_of(&volume)?;
            let spec = v1::ExportSpec {
                volume: Name::Volume(array, volume).to_string(),
                nqn,
                nsid: nsid.unwrap_or(0),
                listen,
                hosts: host,
                any_host,
            };
            let request = v1::CreateExportRequest { request_id: cx.client.request_id(), spec: Some(spec) };
            let export = service.create_export(request).await?.into_inner();
            output::print(cx.format, &view::Export::from(export), created)
        }
        Export::List => output::print(cx.format, &list(cx).await?, |list| output::exports(list)),
        Export::Delete { export, nsid } => {
            let found = pick(&list(cx).await?, &export, nsid)?;
            let name = Name::Export(found.nqn.clone(), found.nsid).to_string();
            let request_id = cx.client.request_id();
            service.delete_export(v1::DeleteExportRequest { request_id, name }).await?;
            super::system::done(
                cx,
                &format!("{} is no longer exported as namespace {} of {}", found.volume, found.nsid, found.nqn),
            )
        }
    }
}

async fn list(cx: &Context) -> Result<Vec<view::Export>> {
    Ok(cx.client.list_exports().await?.into_iter().map(Into::into).collect())
}

/// What was made, and what a host has to type.
fn created(e: &view::Export) -> String {
    let mut out = format!("{} is exported as namespace {} of {}\n", e.volume, e.nsid, e.nqn);
    for listen in &e.listen {
        if let Some((host, port)) = listen.rsplit_once(':') {
            let host = match host.trim_start_matches('[').trim_end_matches(']') {
                // Nobody can connect to "all addresses".
                "0.0.0.0" | "::" => "ADDRESS_OF_THIS_MACHINE",
                host => host,
            };
            out += &format!("nvme connect -t tcp -a {host} -s {port} -n {}\n", e.nqn);
        }
    }
    out
}

/// The one export that is meant, by NQN or volume.
fn pick(list: &[view::Export], what: &str, nsid: Option<u32>) -> Result<view::Export> {
    let found: Vec<&view::Export> = list
        .iter()
        .filter(|e| e.nqn == what || e.volume == what || Name::Export(e.nqn.clone(), e.nsid).to_string() == what)
        .filter(|e| nsid.is_none_or(|n| n == e.nsid))
        .collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(Failure::new(
            Exit::NotFound,
            format!("nothing is exported as '{what}'; 'raidctl export list' shows what is"),
        )),
        several => {
            let names: Vec<String> = several.iter().map(|e| format!("namespace {} of {}", e.nsid, e.nqn)).collect();
            let message = format!("'{what}' could be several exports: {}; give the NQN and --nsid", names.join(", "));
            Err(Failure::new(Exit::Usage, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_told_what_to_type() {
        let spec = |listen: &[&str]| v1::ExportSpec {
            nqn: "nqn.a".into(),
            nsid: 1,
            volume: "arrays/pool/volumes/x".into(),
            listen: listen.iter().map(|l| l.to_string()).collect(),
            ..Default::default()
        };
        let text = created(&view::Export::from(v1::Export {
            name: String::new(),
            spec: Some(spec(&["192.0.2.7:4420", "[2001:db8::7]:4421", "0.0.0.0:4422", "[::]:4423"])),
            status: None,
        }));
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "nvme connect -t tcp -a 192.0.2.7 -s 4420 -n nqn.a",
                "nvme connect -t tcp -a 2001:db8::7 -s 4421 -n nqn.a",
                "nvme connect -t tcp -a ADDRESS_OF_THIS_MACHINE -s 4422 -n nqn.a",
                "nvme connect -t tcp -a ADDRESS_OF_THIS_MACHINE -s 4423 -n nqn.a",
            ]
        );
    }

    #[test]
    fn exports_are_picked_by_nqn_or_volume() {
        let export = |nqn: &str, nsid, volume: &str| {
            let spec = v1::ExportSpec { nqn: nqn.into(), nsid, volume: volume.into(), ..Default::default() };
            view::Export::from(v1::Export { name: String::new(), spec: Some(spec), status: None })
        };
        let list = [
            export("nqn.a", 1, "arrays/pool/volumes/x"),
            export("nqn.a", 2, "arrays/pool/volumes/y"),
            export("nqn.b", 1, "arrays/pool/volumes/x"),
        ];
        assert_eq!(pick(&list, "nqn.b", None).expect("one").nqn, "nqn.b");
        assert_eq!(pick(&list, "pool/y", None).expect("one").nsid, 2);
        assert_eq!(pick(&list, "exports/nqn.a/namespaces/2", None).expect("one").nsid, 2);
        assert_eq!(pick(&list, "nqn.a", Some(2)).expect("one").volume, "pool/y");
        assert_eq!(pick(&list, "nqn.a", None).expect_err("two").exit, Exit::Usage);
        assert_eq!(pick(&list, "pool/x", None).expect_err("two").exit, Exit::Usage);
        assert_eq!(pick(&list, "nqn.c", None).expect_err("none").exit, Exit::NotFound);
    }
}
