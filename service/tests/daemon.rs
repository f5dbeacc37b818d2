//! The real daemon and the real raidctl: restarts, crashes, lost members. Data goes over NVMe/TCP.

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::array::*;
use common::{Daemon, TempDir};

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
    daemon.refused(&["member", "fail", "a", "0"], 4, &["volume 'v' would lose data", "member 0", "add a spare"]);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10), "the refusal changed something");
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

/// How many regions of volume a/v are in a state.
fn regions(daemon: &Daemon, state: &str) -> u64 {
    let shown = daemon.ctl(&["-o", "json", "volume", "show", "a/v"]);
    let regions = shown.split("\"regions\"").nth(1).expect("a bitmap");
    let after = regions.split(&format!("\"{state}\": ")).nth(1).unwrap_or_else(|| panic!("no {state} in {shown}"));
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

/// Bytes that the array's last operation of this kind had to do.
fn work(daemon: &Daemon, kind: &str) -> u64 {
    let shown = daemon.ctl(&["-o", "json", "operation", "list"]);
    let last = shown.split("\"kind\": ").filter(|o| o.starts_with(&format!("\"{kind}\""))).last();
    let last = last.unwrap_or_else(|| panic!("no {kind} in {shown}"));
    let total = last.split("\"total_bytes\": ").nth(1).expect("a total");
    total.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

#[test]
fn a_kill_costs_a_resync_of_what_was_being_written_and_no_more() {
    const GROUP: u64 = 3 << 20;
    let dir = TempDir::new("bitmap");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 4, 0);
    let all = regions(&daemon, "unwritten");
    assert_eq!(all, 6, "a region for each group");
    let mut initiator = connect(port);
    let mut buffer = vec![1; 4096];
    initiator.read(1, 2000, &mut buffer).expect("a read");
    assert!(buffer.iter().all(|b| *b == 0), "what was never written is zeros");
    // The first block of three groups.
    let blocks = [0, GROUP / 4096, 5 * GROUP / 4096];
    for block in blocks {
        write(&mut initiator, block..block + 1, 1);
    }
    assert_eq!((regions(&daemon, "unwritten"), regions(&daemon, "dirty")), (all - 3, 3));
    daemon.kill();

    let daemon = Daemon::serve(&dir, &[]);
    let mut initiator = connect(port);
    for block in blocks {
        check(&mut initiator, block..block + 1, 1);
    }
    daemon.wait_healthy("a");
    assert_eq!(work(&daemon, "resync"), 3 * GROUP, "only those three");
    assert_eq!((regions(&daemon, "unwritten"), regions(&daemon, "need_sync")), (all - 3, 0));
    daemon.stop();
    let daemon = Daemon::serve(&dir, &[]);
    assert!(!daemon.ctl(&["operation", "list"]).contains("resync"), "a clean stop costs nothing");
    daemon.stop();
}

#[test]
fn a_member_that_was_away_comes_back_as_itself_with_what_it_missed() {
    const GROUP: u64 = 3 << 20;
    let dir = TempDir::new("away");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 4, 0);
    // All groups, clean before the member goes: what is clean is on all members.
    let mut initiator = connect(port);
    for group in 0..6 {
        let block = group * GROUP / 4096;
        write(&mut initiator, block..block + 4, 1);
    }
    daemon.wait_for("clean regions", || regions(&daemon, "clean") == 6);
    daemon.stop();
    fs::rename(dir.path("m2"), dir.path("gone")).expect("a member goes");
    let daemon = Daemon::serve(&dir, &[]);
    let mut initiator = connect(port);
    write(&mut initiator, 0..4, 2);
    daemon.stop();
    fs::rename(dir.path("gone"), dir.path("m2")).expect("it comes back");
    let daemon = Daemon::serve(&dir, &[]);
    daemon.ctl(&["member", "add", "a", &path(&dir, "m2")]);
    daemon.wait_healthy("a");
    assert!(daemon.ctl(&["events"]).contains("is back in array"), "{}", daemon.log());
    assert_eq!(daemon.ctl(&["-o", "json", "member", "list", "a"]).matches("\"uuid\"").count(), 4, "the same member");
    // It has everything: another one can go.
    daemon.ctl(&["member", "fail", "a", "0"]);
    let mut initiator = connect(port);
    check(&mut initiator, 0..4, 2);
    for group in 1..6 {
        let block = group * GROUP / 4096;
        check(&mut initiator, block..block + 4, 1);
    }
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
