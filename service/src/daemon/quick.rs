//! The embedded default: five sparse files, RAID-5, one volume, one export.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use raid_core::geometry::Level;
use raid_core::manager::Policy;
use raid_core::units::Bytes;

use super::backend::Control;
use super::cli::QuickStart;
use super::machine::{Daemon, lock};
use super::process::{self, Process, shown};
use crate::control::backend::{ArraySpec, Backend, ExportSpec, Hosts, VolumeSpec};

/// The default's array.
pub const ARRAY: &str = "quickstart";
/// The default's volume.
pub const VOLUME: &str = "data";
/// The default's subsystem.
pub const NQN: &str = "nqn.2026-11.dev.raidd:quickstart";
/// Members of the default.
pub const MEMBERS: usize = 5;
/// Bytes of each member.
pub const MEMBER_BYTES: u64 = 1 << 30;

/// `raidd` without a subcommand.
pub fn run(options: QuickStart) -> Result<(), String> {
    process::log("warn");
    process::runtime()?.block_on(async {
        let dir = &options.data_dir;
        std::fs::create_dir_all(dir)
            .map_err(|e| format!("{} cannot be created: {e}; name another --data-dir", dir.display()))?;
        let control = dir.join("control.sock");
        let process = Process::start(options.common.clone(), &dir.join("state"), &control).await?;
        let result = set_up(&process.daemon, dir, options.listen).await;
        let lines = match result {
            Ok(lines) => lines,
            Err(e) => {
                // The refusal is what the user has to read; the way down adds nothing to it.
                let _ = process.end().await;
                return Err(e);
            }
        };
        for line in lines {
            println!("{line}");
        }
        println!(
            "control socket: {} (raidctl --server unix:{} status)",
            shown(&control).display(),
            shown(&control).display()
        );
        if let Some(http) = process.http {
            println!("page:           http://{http}/");
        }
        println!("serving until Ctrl-C");
        process.wait().await?;
        println!("stopping: flushing and marking the array clean");
        process.end().await
    })
}

/// Assembles the default array, or creates it the first time. Says what it did.
pub async fn set_up(daemon: &Arc<Daemon>, dir: &Path, listen: SocketAddr) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let known = lock(&daemon.state).state.arrays.iter().any(|a| a.name == ARRAY);
    if known {
        daemon.assemble_known().await;
        if let Err(e) = daemon.array(ARRAY) {
            let reason = lock(&daemon.waiting).get(ARRAY).map_or(e.message, |w| w.reason.clone());
            return Err(format!("the default array of {}: {reason}", dir.display()));
        }
        lines.push(format!("assembled array '{ARRAY}' from the members in {}", shown(dir).display()));
    } else {
        create(daemon, dir, listen).await.map_err(|e| e.to_string())?;
        lines.push(format!(
            "created array '{ARRAY}': {MEMBERS} sparse files of 1 GiB in {}, RAID-5, 64 KiB chunks",
            shown(dir).display()
        ));
    }
    let control = Control(daemon.clone());
    let volume = control.arrays().into_iter().find(|a| a.name == ARRAY).and_then(|a| a.volumes.into_iter().next());
    let export = control.exports().into_iter().find(|e| e.array == ARRAY);
    let (Some(volume), Some(export)) = (volume, export) else {
        lines.push("it has no exported volume any more; raidctl shows what there is".to_string());
        return Ok(lines);
    };
    let at = export.listen.first().copied().unwrap_or(listen);
    lines.push(format!(
        "volume '{}':  {}, {}, exported as {} on {at}",
        volume.name,
        Bytes(volume.size),
        volume.state.word(),
        export.nqn
    ));
    if !export.reason.is_empty() {
        lines.push(format!("the export is offline: {}", export.reason));
    }
    // Nobody can connect to "all addresses".
    let ip = if at.ip().is_unspecified() { "ADDRESS_OF_THIS_MACHINE".to_string() } else { at.ip().to_string() };
    lines.push(format!("connect with:   nvme connect -t tcp -a {ip} -s {} -n {}", at.port(), export.nqn));
    Ok(lines)
}

async fn create(daemon: &Arc<Daemon>, dir: &Path, listen: SocketAddr) -> Result<(), crate::control::error::Error> {
    let control = Control(daemon.clone());
    let members = (0..MEMBERS).map(|i| dir.join(format!("member-{i}")).display().to_string()).collect();
    let spec = ArraySpec {
        name: ARRAY.to_string(),
        members,
        spares: 0,
        extent: None,
        shards: None,
        wipe: false,
        create_size: Some(MEMBER_BYTES),
    };
    control.create_array(spec).await?;
    let volume = VolumeSpec {
        name: VOLUME.to_string(),
        level: Level::Raid5,
        width: None,
        chunk: 64 << 10,
        size: None,
        block_size: 4096,
        policy: Policy::Bitmap,
    };
    control.create_volume(ARRAY, volume).await?;
    let export = ExportSpec {
        array: ARRAY.to_string(),
        volume: VOLUME.to_string(),
        nqn: NQN.to_string(),
        nsid: None,
        listen: vec![listen],
        // The default listens on the loopback only, where whoever connects could read the files as well.
        hosts: Hosts::Any,
    };
    control.create_export(export).await.map(drop)
}
