//! The real daemon and the real raidctl: restarts, crashes, lost members, bad input. Data goes over NVMe/TCP.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Daemon, TempDir, free_port};
use nvme_wire::tcp::Digests;
use raidd::nvmf::initiator::Initiator;

const NQN: &str = "nqn.2026-11.dev.raidd:test";
const BLOCK: usize = 4096;

/// An array 'a' of sparse members, a volume 'v', exported; returns the port.
fn set_up(daemon: &Daemon, dir: &TempDir, level: &str, members: usize, spares: usize) -> u16 {
    let mut create: Vec<String> =
        ["array", "create", "a", "--size", "48MiB", "--extent", "1MiB"].map(String::from).to_vec();
    for i in 0..members + spares {
        create.extend(["--member".into(), path(dir, &format!("m{i}"))]);
    }
    create.extend(["--spares".into(), spares.to_string()]);
    daemon.ctl(&create.iter().map(String::as_str).collect::<Vec<_>>());
    daemon.ctl(&["volume", "create", "a", "v", "--level", level, "--size", "16MiB"]);
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    daemon.ctl(&["export", "create", "a/v", "--nqn", NQN, "--listen", &listen, "--any-host"]);
    port
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path(name).display().to_string()
}

fn connect(port: u16) -> Initiator {
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

fn content(block: u64, generation: u8) -> Vec<u8> {
    (0..BLOCK).map(|i| (block as usize * 7 + i / 13 + i) as u8 ^ generation.wrapping_mul(29)).collect()
}

fn write(initiator: &mut Initiator, blocks: std::ops::Range<u64>, generation: u8) {
    for block in blocks {
        initiator.write(1, block, &content(block, generation), false).expect("a write");
    }
}

fn check(initiator: &mut Initiator, blocks: std::ops::Range<u64>, generation: u8) {
    let mut buffer = vec![0; BLOCK];
    for block in blocks {
        initiator.read(1, block, &mut buffer).expect("a read");
        assert!(buffer == content(block, generation), "block {block} does not hold generation {generation}");
    }
}

fn exit_code(daemon: &Daemon, arguments: &[&str]) -> Option<i32> {
    daemon.run(arguments).status.code()
}

#[test]
fn data_and_exports_outlive_a_stop_and_a_kill() {
    let dir = TempDir::new("restart");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 4, 0);
    let mut initiator = connect(port);
    write(&mut initiator, 0..300, 1);
    daemon.stop();

    let daemon = Daemon::serve(&dir, &[]);
    let mut initiator = connect(port);
    check(&mut initiator, 0..300, 1);
    assert!(daemon.ctl(&["export", "list"]).contains(NQN));
    write(&mut initiator, 100..200, 2);
    initiator.flush(1).expect("a flush");
    daemon.kill();

    // Written to and not stopped: resynced, and right meanwhile.
    let daemon = Daemon::serve(&dir, &[]);
    let mut initiator = connect(port);
    check(&mut initiator, 0..100, 1);
    check(&mut initiator, 100..200, 2);
    check(&mut initiator, 200..300, 1);
    daemon.wait_healthy("a");
    assert!(daemon.ctl(&["events"]).contains("resync"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn a_member_fails_is_replaced_and_the_data_stays() {
    let dir = TempDir::new("replace");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "6", 5, 0);
    let mut initiator = connect(port);
    write(&mut initiator, 0..200, 1);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(0));
    daemon.ctl(&["member", "fail", "a", "1"]);
    daemon.ctl(&["member", "fail", "a", "3"]);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10));
    check(&mut initiator, 0..200, 1);
    write(&mut initiator, 50..150, 2);
    let e = daemon.refused(&["member", "fail", "a", "0"]);
    assert!(e.contains("volume") && exit_code(&daemon, &["array", "show", "a", "--check"]) == Some(10), "{e}");
    // A second member is replaced while the first rebuild may still run.
    daemon.ctl(&["member", "replace", "a", "1", "--with", &path(&dir, "n1"), "--size", "48MiB"]);
    daemon.ctl(&["member", "replace", "a", "3", "--with", &path(&dir, "n3"), "--size", "48MiB"]);
    write(&mut initiator, 120..150, 3);
    daemon.wait_healthy("a");
    check(&mut initiator, 0..50, 1);
    check(&mut initiator, 50..120, 2);
    check(&mut initiator, 120..150, 3);
    // And what was rebuilt is right: now the others are gone.
    daemon.ctl(&["member", "fail", "a", "0"]);
    daemon.ctl(&["member", "fail", "a", "2"]);
    check(&mut initiator, 0..50, 1);
    check(&mut initiator, 50..120, 2);
    check(&mut initiator, 120..150, 3);
    daemon.stop();
}

#[test]
fn a_missing_member_means_degraded_after_a_wait_with_advice() {
    let dir = TempDir::new("missing");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 4, 0);
    write(&mut connect(port), 0..100, 1);
    daemon.stop();
    fs::rename(dir.path("m2"), dir.path("gone")).expect("a member goes");
    let daemon = Daemon::serve(&dir, &[]);
    let mut initiator = connect(port);
    check(&mut initiator, 0..100, 1);
    let events = daemon.ctl(&["events"]);
    assert!(events.contains("member replace"), "no advice in {events}");
    assert!(daemon.log().contains("waits 1 s for"), "{}", daemon.log());
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10));
    // It comes back, is stale, and is not read.
    write(&mut initiator, 0..100, 2);
    daemon.stop();
    fs::rename(dir.path("gone"), dir.path("m2")).expect("it comes back");
    let daemon = Daemon::serve(&dir, &[]);
    check(&mut connect(port), 0..100, 2);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10), "a stale member is no member");
    daemon.ctl(&["member", "remove", "a", "2"]);
    daemon.stop();
}

#[test]
fn read_errors_are_repaired_and_write_errors_fail_the_member() {
    let dir = TempDir::new("faults");
    let daemon = Daemon::serve(&dir, &["--enable-faults"]);
    let port = set_up(&daemon, &dir, "5", 4, 0);
    let mut initiator = connect(port);
    write(&mut initiator, 0..200, 1);
    // A read error: rebuilt from the others, rewritten, counted; the member stays.
    let lines = daemon.log().lines().count();
    daemon.ctl(&["fault", "add", "a", "0", "--on", "read", "--error", "media"]);
    check(&mut initiator, 0..200, 1);
    let said = daemon.log().lines().count() - lines;
    assert!(said < 20, "{said} log lines for some fifty read errors:\n{}", daemon.log());
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(0), "{}", daemon.log());
    let members = daemon.ctl(&["-o", "json", "member", "show", "a", "0"]);
    assert!(!members.contains("\"repaired\": 0,") && members.contains("repaired"), "{members}");
    daemon.ctl(&["fault", "clear"]);
    // A write error: the member fails, the writes do not; and no log line for each.
    let lines = daemon.log().lines().count();
    daemon.ctl(&["fault", "add", "a", "0", "--on", "write", "--error", "device"]);
    write(&mut initiator, 0..200, 2);
    check(&mut initiator, 0..200, 2);
    daemon.wait_for("a failed member", || exit_code(&daemon, &["array", "show", "a", "--check"]) == Some(10));
    assert!(daemon.ctl(&["member", "list", "a"]).to_lowercase().contains("failed"));
    let said = daemon.log().lines().count() - lines;
    assert!(said < 20, "{said} log lines for one failed member:\n{}", daemon.log());
    daemon.stop();
}

/// Writes blocks at random until told to stop or the connection breaks. Gives, for each block, the last generation that was
/// acknowledged and the one that may be on its way.
fn writer(port: u16, blocks: u64, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) -> Vec<(u8, u8)> {
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

#[test]
fn copies_that_a_crash_left_different_read_the_same_and_are_resynced() {
    for level in ["1", "10"] {
        let dir = TempDir::new("mirror");
        let daemon = Daemon::serve(&dir, &[]);
        let port = set_up(&daemon, &dir, level, 4, 0);
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let load = std::thread::spawn({
            let (stop, written) = (stop.clone(), written.clone());
            move || writer(port, 64, stop, written)
        });
        daemon.wait_for("writes", || written.load(Ordering::Relaxed) > 500);
        // In the middle of whatever is in flight.
        daemon.kill();
        let state = load.join().expect("the writer");
        let daemon = Daemon::serve(&dir, &[]);
        let mut initiator = connect(port);
        let mut first = Vec::new();
        for (block, (acknowledged, on_its_way)) in (0u64..).zip(&state) {
            let mut one = vec![0; BLOCK];
            initiator.read(1, block, &mut one).expect("a read");
            for _ in 0..4 {
                let mut again = vec![0; BLOCK];
                initiator.read(1, block, &mut again).expect("a read");
                assert!(one == again, "RAID-{level}: two reads of block {block} differ");
            }
            let never = *acknowledged == 0 && one.iter().all(|b| *b == 0);
            let good = one == content(block, *acknowledged) || one == content(block, *on_its_way) || never;
            assert!(good, "RAID-{level}: block {block} holds neither what was acknowledged nor what was on its way");
            first.push(one);
        }
        assert!(daemon.ctl(&["events"]).contains("resync-began"), "{}", daemon.ctl(&["events"]));
        daemon.wait_healthy("a");
        for (block, one) in (0u64..).zip(&first) {
            let mut again = vec![0; BLOCK];
            initiator.read(1, block, &mut again).expect("a read");
            assert!(*one == again, "RAID-{level}: block {block} changed by the resync");
        }
        daemon.stop();
    }
}

#[test]
fn members_come_and_go_under_load_and_another_fails_during_the_rebuild() {
    let dir = TempDir::new("churn");
    let daemon = Daemon::serve(&dir, &["--enable-faults"]);
    let port = set_up(&daemon, &dir, "6", 5, 0);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = std::thread::spawn({
        let (stop, written) = (stop.clone(), written.clone());
        move || writer(port, 1024, stop, written)
    });
    daemon.wait_for("writes", || written.load(Ordering::Relaxed) > 200);
    // Slow reads, so that the rebuild is still running when the next member fails.
    daemon.ctl(&["fault", "add", "a", "0", "--on", "read", "--delay", "20ms"]);
    daemon.ctl(&["member", "fail", "a", "1"]);
    daemon.ctl(&["member", "add", "a", &path(&dir, "n1"), "--size", "48MiB"]);
    daemon.wait_for("a rebuild", || exit_code(&daemon, &["array", "show", "a", "--check"]) == Some(11));
    daemon.ctl(&["member", "fail", "a", "2"]);
    daemon.ctl(&["member", "add", "a", &path(&dir, "n2"), "--size", "48MiB"]);
    daemon.ctl(&["fault", "clear"]);
    daemon.wait_healthy("a");
    let before = written.load(Ordering::Relaxed);
    daemon.wait_for("more writes", || written.load(Ordering::Relaxed) > before + 200);
    stop.store(true, Ordering::Relaxed);
    let state = load.join().expect("the writer");
    // Right, and redundant: also without two other members.
    let mut initiator = connect(port);
    daemon.ctl(&["member", "fail", "a", "0"]);
    daemon.ctl(&["member", "fail", "a", "3"]);
    for (block, (generation, _)) in (0u64..).zip(&state).filter(|(_, s)| s.0 != 0) {
        check(&mut initiator, block..block + 1, *generation);
    }
    daemon.stop();
}

#[test]
fn two_daemons_do_not_share_members_and_a_dead_one_is_taken_over() {
    let dir = TempDir::new("two");
    let daemon = Daemon::serve(&dir, &[]);
    set_up(&daemon, &dir, "1", 2, 0);
    // The same socket.
    let mut second = Daemon::try_serve(&dir, &[]);
    second.wait_end(false);
    assert!(second.log().contains("in use") || second.log().contains("live"), "{}", second.log());
    // The same members, another state.
    let other = TempDir::new("two-other");
    let second = Daemon::serve(&other, &[]);
    let e = second.refused(&["array", "assemble", &path(&dir, "m0"), &path(&dir, "m1")]);
    assert!(e.contains("locked by another process") || e.contains("process"), "{e}");
    second.stop();
    daemon.kill();
    let daemon = Daemon::serve(&dir, &[]);
    daemon.wait_healthy("a");
    daemon.stop();
}

#[test]
fn bad_arguments_are_refused_and_change_nothing() {
    let dir = TempDir::new("bad");
    let daemon = Daemon::serve(&dir, &[]);
    let m = |n: &str| path(&dir, n);
    let refuse = |arguments: &[&str], texts: &[&str]| {
        let e = daemon.refused(arguments);
        assert!(texts.iter().any(|t| e.contains(t)), "{arguments:?}: {e}");
        assert!(!e.contains("panicked"), "{e}");
    };
    refuse(&["array", "create", "x", "--member", &m("none")], &["no such file"]);
    refuse(&["array", "create", "x", "--member", &m("small"), "--size", "1MiB"], &["8 MiB"]);
    refuse(&["array", "create", "../x", "--member", &m("m"), "--size", "48MiB"], &["name"]);
    refuse(&["array", "create", "x", "--member", &m("s"), "--member", &m("s"), "--size", "48MiB"], &["once", "twice"]);
    refuse(&["array", "show", "x"], &["no array"]);
    assert_eq!(
        fs::read_dir(&dir.0).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count(),
        1,
        "only the log"
    );

    // A foreign signature.
    let mut image = vec![0u8; 48 << 20];
    image[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    fs::write(dir.path("ext"), &image).unwrap();
    refuse(&["array", "create", "x", "--member", &m("ext")], &["ext"]);
    assert!(fs::read(dir.path("ext")).unwrap() == image, "a refused device was written to");

    set_up(&daemon, &dir, "5", 3, 0);
    let before = daemon.ctl(&["-o", "json", "volume", "list", "a"]);
    refuse(&["array", "create", "b", "--member", &m("m0")], &["once", "in use", "carries"]);
    refuse(&["volume", "create", "a", "w", "--level", "6"], &["6", "members", "width"]);
    refuse(&["volume", "create", "a", "w", "--level", "5", "--size", "1TiB"], &["space"]);
    refuse(&["volume", "create", "a", "w", "--level", "5", "--chunk", "5000"], &["chunk", "power"]);
    refuse(&["volume", "create", "a", "v", "--level", "5"], &["already", "exists", "space"]);
    refuse(&["--yes", "volume", "delete", "a", "v"], &["exported"]);
    refuse(&["--yes", "array", "delete", "a"], &["exported", "volumes"]);
    refuse(&["array", "stop", "a"], &["exported"]);
    refuse(&["member", "fail", "a", "9"], &["member 9", "no member"]);
    let listen = format!("127.0.0.1:{}", free_port());
    refuse(&["export", "create", "a/v", "--nqn", "not-an-nqn", "--listen", &listen, "--any-host"], &["NQN", "nqn"]);
    daemon.ctl(&["volume", "create", "a", "w", "--level", "5", "--size", "4MiB"]);
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("127.0.0.1:{}", busy.local_addr().unwrap().port());
    let other = "nqn.2026-11.dev.raidd:other";
    refuse(&["export", "create", "a/w", "--nqn", other, "--listen", &taken, "--any-host"], &["in use", "listen"]);
    // Hosts and listeners belong to the subsystem: a second namespace neither narrows nor widens them silently.
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    let first = daemon.ctl(&["-o", "json", "export", "list"]);
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    let own = first[0]["listen"][0].as_str().unwrap().to_owned();
    refuse(&["export", "create", "a/w", "--nqn", NQN, "--listen", &own, "--host", host], &["other hosts"]);
    refuse(&["export", "create", "a/w", "--nqn", NQN, "--listen", &listen, "--any-host"], &["other addresses"]);
    refuse(&["export", "create", "a/w", "--nqn", other, "--listen", "127.0.0.1:0", "--any-host"], &["port 0"]);
    assert!(!daemon.ctl(&["export", "list"]).contains("a/w"), "a refused export is listed");
    daemon.ctl(&["export", "create", "a/w", "--nqn", NQN, "--listen", &own, "--any-host"]);
    daemon.ctl(&["export", "delete", "a/w"]);
    assert!(!daemon.ctl(&["export", "list"]).contains(other), "a refused export is listed");
    daemon.ctl(&["--yes", "volume", "delete", "a", "w"]);
    assert_eq!(daemon.ctl(&["-o", "json", "volume", "list", "a"]), before);
    daemon.stop();
}

#[test]
fn garbage_closes_its_connection_and_no_other() {
    let dir = TempDir::new("garbage");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "1", 2, 0);
    let mut initiator = connect(port);
    write(&mut initiator, 0..20, 1);
    let mut random = 0x2545_F491_4F6C_DD1Du64;
    for n in 0..60 {
        let mut bytes = vec![0u8; 1 + n * 37 % 600];
        for b in &mut bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *b = random as u8;
        }
        // The first byte is a PDU type: known ones and others, with nonsense behind.
        bytes[0] = (n % 12) as u8;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // It may be closed before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is a close too; what must not happen is that it stays open.
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert!(
                !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                "case {n}: left open"
            );
        }
    }
    let mut control = std::os::unix::net::UnixStream::connect(&daemon.socket).expect("the control socket");
    let _ = control.write_all(b"GET / HTTP/1.1\r\n\r\n\0\0\0garbage");
    drop(control);
    check(&mut initiator, 0..20, 1);
    write(&mut initiator, 0..20, 2);
    check(&mut initiator, 0..20, 2);
    daemon.ctl(&["status"]);
    daemon.stop();
}

#[test]
fn a_full_file_system_fails_the_member_and_not_the_write() {
    let dir = TempDir::new("full");
    let small = dir.path("small");
    fs::create_dir_all(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=20m", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|s| s.success()) {
        println!("skipped: a small tmpfs cannot be mounted without root");
        return;
    }
    let result = std::panic::catch_unwind(|| full_file_system(&dir, &small));
    Command::new("umount").arg("-l").arg(&small).status().unwrap();
    if let Err(e) = result {
        std::panic::resume_unwind(e);
    }
}

fn full_file_system(dir: &TempDir, small: &Path) {
    let daemon = Daemon::serve(dir, &[]);
    let thin = small.join("m2").display().to_string();
    let (m0, m1) = (path(dir, "m0"), path(dir, "m1"));
    daemon.ctl(&[
        "array", "create", "a", "--size", "96MiB", "--extent", "1MiB", "--member", &m0, "--member", &m1, "--member",
        &thin,
    ]);
    daemon.ctl(&["volume", "create", "a", "v", "--level", "5", "--size", "96MiB"]);
    let port = free_port();
    daemon.ctl(&["export", "create", "a/v", "--nqn", NQN, "--listen", &format!("127.0.0.1:{port}"), "--any-host"]);
    let mut initiator = connect(port);
    let data: Vec<u8> = (0..1 << 20).map(|i| (i / 3) as u8 | 1).collect();
    for mib in 0..64 {
        initiator.write(1, mib * 256, &data, false).expect("no write fails: the member does");
    }
    let members = daemon.ctl(&["-o", "json", "member", "list", "a"]);
    assert!(members.contains("no space"), "{members}");
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10));
    let mut back = vec![0; 1 << 20];
    for mib in 0..64 {
        initiator.read(1, mib * 256, &mut back).expect("a read");
        assert!(back == data, "MiB {mib}");
    }
    daemon.stop();
}

#[test]
fn an_array_is_created_again_on_members_of_an_earlier_one() {
    let dir = TempDir::new("again");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 3, 0);
    write(&mut connect(port), 0..50, 1);
    daemon.stop();
    let other = TempDir::new("again-other");
    let daemon = Daemon::serve(&other, &[]);
    let members: Vec<String> = (0..3).map(|i| path(&dir, &format!("m{i}"))).collect();
    let mut create = vec!["array", "create", "b"];
    members.iter().for_each(|m| create.extend(["--member", m.as_str()]));
    let e = daemon.refused(&create);
    assert!(e.contains("--wipe") && e.contains("'a'"), "{e}");
    create.extend(["--wipe", "--yes"]);
    daemon.ctl(&create);
    daemon.ctl(&["volume", "create", "b", "v", "--level", "5", "--size", "8MiB"]);
    let port = free_port();
    daemon.ctl(&["export", "create", "b/v", "--nqn", NQN, "--listen", &format!("127.0.0.1:{port}"), "--any-host"]);
    let mut buffer = vec![1; BLOCK];
    connect(port).read(1, 7, &mut buffer).expect("a read");
    assert!(buffer.iter().all(|b| *b == 0), "the earlier array's data shows through");
    daemon.stop();
}
