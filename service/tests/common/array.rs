//! An array that is exported, and verified data in it over NVMe/TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nvme_wire::tcp::Digests;
use raidd::nvmf::initiator::Initiator;

use super::{Daemon, TempDir};

pub const NQN: &str = "nqn.2026-11.dev.raidd:test";
pub const BLOCK: usize = 4096;

/// An array 'a' of sparse members, a volume 'v', exported; returns the port.
pub fn set_up(daemon: &Daemon, dir: &TempDir, level: &str, members: usize, spares: usize) -> u16 {
    let mut create: Vec<String> =
        ["array", "create", "a", "--size", "48MiB", "--extent", "1MiB"].map(String::from).to_vec();
    for i in 0..members + spares {
        create.extend(["--member".into(), path(dir, &format!("m{i}"))]);
    }
    create.extend(["--spares".into(), spares.to_string()]);
    daemon.ctl(&create.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.ctl(&["volume", "create", "a", "v", "--level", level, "--size", "16MiB"]);
    export(daemon, "a/v", NQN)
}

/// Exports a volume on a port that was free a moment ago, or on another one if somebody was faster; returns the port.
pub fn export(daemon: &Daemon, volume: &str, nqn: &str) -> u16 {
    loop {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let output = daemon.run(&["export", "create", volume, "--nqn", nqn, "--listen", &listen, "--any-host"]);
        let message = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return port;
        }
        assert!(message.contains("Address already in use"), "{volume} is not exported: {message}");
    }
}

/// A port that nobody listens on now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

pub fn path(dir: &TempDir, name: &str) -> String {
    dir.path(name).display().to_string()
}

pub fn connect(port: u16) -> Initiator {
    let mut last = None;
    // After a restart the export comes back a moment after the control socket.
    for _ in 0..600 {
        match Initiator::connect(("127.0.0.1", port), NQN, "nqn.2026-11.dev.raidd:host", 1, 16, Digests::default()) {
            Ok(initiator) if !initiator.namespaces().is_empty() => return initiator,
            Ok(_) => {}
            Err(e) => last = Some(e),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no connection: {last:?}");
}

pub fn content(block: u64, generation: u8) -> Vec<u8> {
    (0..BLOCK).map(|i| (block as usize * 7 + i / 13 + i) as u8 ^ generation.wrapping_mul(29)).collect()
}

pub fn write(initiator: &mut Initiator, blocks: std::ops::Range<u64>, generation: u8) {
    for block in blocks {
        initiator.write(1, block, &content(block, generation), false).expect("a write");
    }
}

pub fn check(initiator: &mut Initiator, blocks: std::ops::Range<u64>, generation: u8) {
    let mut buffer = vec![0; BLOCK];
    for block in blocks {
        initiator.read(1, block, &mut buffer).expect("a read");
        assert!(buffer == content(block, generation), "block {block} does not hold generation {generation}");
    }
}

pub fn exit_code(daemon: &Daemon, arguments: &[&str]) -> Option<i32> {
    daemon.run(arguments).status.code()
}

/// Writes blocks at random until told to stop or the connection breaks. Gives, for each block, the last generation that was
/// acknowledged and the one that may be on its way.
pub fn writer(port: u16, blocks: u64, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) -> Vec<(u8, u8)> {
    let mut initiator = connect(port);
    let mut state = vec![(0u8, 0u8); blocks as usize];
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    while !stop.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = random % blocks;
        let entry = &mut state[block as usize];
        entry.1 = entry.0.wrapping_add(1).max(1);
        if initiator.write(1, block, &content(block, entry.1), false).is_err() {
            break;
        }
        entry.0 = entry.1;
        written.fetch_add(1, Ordering::Relaxed);
    }
    state
}
