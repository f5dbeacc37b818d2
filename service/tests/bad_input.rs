//! Bad input, with the real binaries: each with its exit code and a message that says what happened, to what, and what to
//! do; nothing is lost, and nobody else notices.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::array::*;
use common::{Daemon, TempDir};
use nvme_wire::command::Sqe;
use nvme_wire::tcp::{CapsuleCmd, Digests, Fes, H2CData, ICReq, PduType, TermReq};
use nvme_wire::zerocopy::{FromBytes, IntoBytes};

fn files(dir: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(&dir.0).expect("the folder").map(|e| e.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn refused_arrays_change_nothing() {
    let dir = TempDir::new("bad");
    let daemon = Daemon::serve(&dir, &[]);
    let m = |n: &str| path(&dir, n);
    fs::File::create(dir.path("h0")).unwrap().set_len(48 << 20).unwrap();
    fs::hard_link(dir.path("h0"), dir.path("h1")).unwrap();
    std::os::unix::fs::symlink(dir.path("h0"), dir.path("s0")).unwrap();
    let before = files(&dir);
    let create = |arguments: &[&str], code, texts: &[&str]| {
        daemon.refused(&[&["array", "create"], arguments].concat(), code, texts);
    };
    create(&["x", "--member", &m("none")], 4, &[&m("none"), "no such file", "--size"]);
    create(&["x", "--member", &m("n"), "--size", "1MiB"], 4, &[&m("n"), "1 MiB is too little", "at least 8 MiB"]);
    create(&["../x", "--member", &m("n"), "--size", "48MiB"], 2, &["'../x'", "name", "choose"]);
    create(&["x", "--member", ""], 2, &["''", "not a path", "name a file"]);
    create(&["x", "--member", &m("n"), "--size", "48MiB", "--shards", "0"], 2, &["'0'", "--shards"]);
    create(&["x", "--member", &m("n"), "--size", "48MiB", "--spares", "1"], 2, &["spares", "name more members"]);
    create(&["x", "--member", &m("n"), "--size", "48MiB", "--extent", "3MiB"], 2, &["extent", "power of two"]);
    // The same file twice, by whatever path.
    let twice = "is in use by this raidd already";
    let sized = ["--size", "48MiB"];
    create(
        &[&["x", "--member", &m("n"), "--member", &m("./n")], &sized[..]].concat(),
        4,
        &[&m("n"), twice, "only once"],
    );
    for other in ["h1", "s0", "../RELATIVE"] {
        let relative = format!("../{}/h0", dir.0.file_name().unwrap().to_str().unwrap());
        let other = if other.starts_with("..") { m(&relative) } else { m(other) };
        create(&["x", "--member", &m("h0"), "--member", &other], 4, &[&other, twice, &m("h0"), "only once"]);
    }
    daemon.refused(&["array", "show", "x"], 3, &["no array 'x'", "raidctl array list"]);
    assert_eq!(files(&dir), before, "a refused creation made or removed files");
    daemon.stop();
}

#[test]
fn foreign_signatures_need_wipe_and_stay_as_they_are() {
    let dir = TempDir::new("foreign");
    let daemon = Daemon::serve(&dir, &[]);
    let made = |name: &str, at: usize, bytes: &[u8]| {
        let mut image = vec![0u8; 48 << 20];
        image[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(dir.path(name), &image).expect("an image");
    };
    made("gpt", 512, b"EFI PART");
    made("md", 4096, &0xA92B_4EFCu32.to_le_bytes());
    let mut images = vec![("gpt", "GPT"), ("md", "md")];
    fs::File::create(dir.path("ext")).unwrap().set_len(48 << 20).unwrap();
    match Command::new("mkfs.ext4").args(["-q", "-F"]).arg(dir.path("ext")).env("PATH", search_path()).status() {
        Ok(status) => {
            assert!(status.success(), "mkfs.ext4 fails");
            images.push(("ext", "ext4 file system"));
        }
        Err(e) if nix_is_root() => panic!("mkfs.ext4 is missing ({e}): 'cargo xtask test' installs e2fsprogs"),
        Err(e) => println!("no ext4 image: mkfs.ext4 is missing ({e}); install e2fsprogs"),
    }
    daemon.ctl(&[
        "array",
        "create",
        "a",
        "--size",
        "48MiB",
        "--member",
        &path(&dir, "m0"),
        "--member",
        &path(&dir, "m1"),
    ]);
    for (name, what) in images {
        let device = path(&dir, name);
        let before = fs::read(dir.path(name)).unwrap();
        let texts = [device.as_str(), what, "nothing was changed", "--wipe"];
        daemon.refused(&["array", "create", "x", "--member", &device], 4, &texts);
        daemon.refused(&["member", "add", "a", &device], 4, &texts);
        let unconfirmed = ["array", "create", "x", "--member", &device, "--wipe"];
        daemon.refused(&unconfirmed, 4, &[&device, "destroy all data", "--yes"]);
        assert!(fs::read(dir.path(name)).unwrap() == before, "{name}: a refused device was written to");
        daemon.ctl(&["--yes", "array", "create", "x", "--member", &device, "--wipe"]);
        daemon.ctl(&["--yes", "array", "delete", "x"]);
    }
    daemon.stop();
}

/// mkfs lives where an ordinary user's path does not lead.
fn search_path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn nix_is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|s| s.lines().any(|l| l.starts_with("Uid:\t0\t")))
}

#[test]
fn refused_changes_of_a_running_array_change_nothing() {
    let dir = TempDir::new("refused");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 3, 0);
    let before = daemon.ctl(&["-o", "json", "volume", "list", "a"]);
    let refuse = |arguments: &[&str], code, texts: &[&str]| daemon.refused(arguments, code, texts);
    let (m0, taken) = (path(&dir, "m0"), "is in use by this raidd already");
    refuse(&["array", "create", "b", "--member", &m0], 4, &[&m0, taken, "only once"]);
    refuse(&["array", "create", "a", "--member", &m0], 4, &["array 'a' already", "another name", "array delete a"]);
    let volume = |arguments: &[&str], code, texts: &[&str]| {
        refuse(&[&["volume", "create", "a"], arguments].concat(), code, texts);
    };
    volume(&["w", "--level", "6"], 2, &["volume 'w'", "raid6 needs at least 4 members", "given 3", "add members"]);
    volume(&["w", "--level", "5", "--size", "1TiB"], 4, &["no space", "volume 'w'", "1 TiB asked for", "Ask for less"]);
    volume(&["w", "--level", "5", "--chunk", "5000"], 2, &["volume 'w'", "power of two from 4 KiB to 1 MiB"]);
    volume(&["w", "--level", "5", "--chunk", "1GiB"], 2, &["volume 'w'", "4 KiB to 1 MiB"]);
    volume(&["w", "--level", "5", "--block-size", "1000"], 2, &["1000", "512 or 4096"]);
    volume(&["v", "--level", "5"], 4, &["volume 'v'", "already", "choose another name"]);
    let exported = ["a/v", "is exported as", NQN, "delete"];
    refuse(&["--yes", "volume", "delete", "a", "v"], 4, &exported);
    refuse(&["--yes", "array", "delete", "a"], 4, &exported);
    refuse(&["array", "stop", "a"], 4, &exported);
    refuse(&["member", "fail", "a", "9"], 3, &["array 'a'", "no member 9", "raidctl member list a"]);
    refuse(&["member", "remove", "a", "0"], 4, &["member 0", "in use", "member replace a 0"]);
    refuse(&["member", "add", "a", &m0], 4, &[&m0, taken]);
    daemon.ctl(&["volume", "create", "a", "w", "--level", "5", "--size", "4MiB"]);
    let export = |nqn: &str, listen: &str, code, texts: &[&str]| {
        refuse(&["export", "create", "a/w", "--nqn", nqn, "--listen", listen, "--any-host"], code, texts);
    };
    let other = "nqn.2026-11.dev.raidd:other";
    // Hosts and listeners belong to the subsystem: a second namespace neither narrows nor widens them silently.
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    let own = format!("127.0.0.1:{port}");
    let narrower = ["export", "create", "a/w", "--nqn", NQN, "--listen", &own, "--host", host];
    refuse(&narrower, 4, &[NQN, "allows other hosts", "--host"]);
    export(NQN, &format!("127.0.0.1:{}", free_port()), 4, &[NQN, "listens on other addresses", "--listen"]);
    export(other, "127.0.0.1:0", 2, &["port 0", "ADDRESS:PORT"]);
    assert!(!daemon.ctl(&["export", "list"]).contains("a/w"), "a refused export is listed");
    daemon.ctl(&["export", "create", "a/w", "--nqn", NQN, "--listen", &own, "--any-host"]);
    daemon.ctl(&["export", "delete", "a/w"]);
    for wrong in ["not-an-nqn", "", "nqn.2026-13.dev.raidd:x", "nqn.2026-11.dev.raidd:a b"] {
        export(wrong, &own, 2, &[&format!("'{wrong}'"), "not an NVMe Qualified Name", "looks like"]);
    }
    export(other, "127.0.0.1", 2, &["'127.0.0.1'", "ADDRESS:PORT", "write it like"]);
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = busy.local_addr().unwrap().to_string();
    export(other, &taken, 4, &[&taken, "Address already in use", "choose another address"]);
    assert!(!daemon.ctl(&["export", "list"]).contains(other), "a refused export is listed");
    daemon.ctl(&["--yes", "volume", "delete", "a", "w"]);
    assert_eq!(daemon.ctl(&["-o", "json", "volume", "list", "a"]), before);
    daemon.stop();
}

#[test]
fn a_state_that_cannot_be_saved_costs_no_files() {
    let dir = TempDir::new("unsaved");
    let daemon = Daemon::serve(&dir, &[]);
    // What root cannot write either.
    fs::create_dir(daemon.state.join("state.json.new")).unwrap();
    let before = files(&dir);
    let create =
        ["array", "create", "b", "--size", "48MiB", "--member", &path(&dir, "m0"), "--member", &path(&dir, "m1")];
    daemon.refused(&create, 4, &["state.json", "cannot be saved"]);
    daemon.refused(&["array", "show", "b"], 3, &["no array 'b'"]);
    assert_eq!(files(&dir), before, "members of a refused array were left behind");
    fs::remove_dir(daemon.state.join("state.json.new")).unwrap();
    let port = set_up(&daemon, &dir, "1", 2, 0);
    write(&mut connect(port), 0..20, 1);
    fs::create_dir(daemon.state.join("state.json.new")).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let export = ["export", "create", "a/w", "--nqn", "nqn.2026-11.dev.raidd:w", "--listen", &listen, "--any-host"];
    daemon.ctl(&["volume", "create", "a", "w", "--level", "1", "--size", "4MiB"]);
    daemon.refused(&export, 4, &["state.json", "cannot be saved"]);
    assert!(!daemon.ctl(&["export", "list"]).contains("a/w"), "a refused export is served");
    // A change of members is done and stays; what could not be saved is said.
    daemon.ctl(&["member", "add", "a", &path(&dir, "m9"), "--size", "48MiB"]);
    assert!(daemon.ctl(&["events"]).contains("state-not-saved"), "{}", daemon.ctl(&["events"]));
    check(&mut connect(port), 0..20, 1);
    daemon.stop();
}

#[test]
fn what_is_no_member_any_more_does_not_keep_a_redundant_array_from_starting() {
    let dir = TempDir::new("superblocks");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 3, 0);
    write(&mut connect(port), 0..100, 1);
    daemon.stop();
    let file = fs::OpenOptions::new().read(true).write(true).open(dir.path("m1")).unwrap();
    let end = (48 << 20) - 4096;
    let mut whole = vec![0; 4096];
    file.read_exact_at(&mut whole, 0).unwrap();
    // One copy: the other is used, and the bad one repaired.
    for at in [0, end] {
        file.write_all_at(&[0xA5; 4096], at).unwrap();
        let daemon = Daemon::serve(&dir, &[]);
        check(&mut connect(port), 0..100, 1);
        assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(0), "{}", daemon.log());
        let events = daemon.ctl(&["events"]);
        assert!(events.contains("superblock-repaired") && events.contains(&path(&dir, "m1")), "{events}");
        daemon.stop();
        let mut again = vec![0; 4096];
        file.read_exact_at(&mut again, at).unwrap();
        assert!(again != [0xA5; 4096], "the copy at {at} was not repaired");
    }
    // Both: left out and untouched, and the array goes on degraded.
    for at in [0, end] {
        file.write_all_at(&[0xA5; 4096], at).unwrap();
    }
    let before = fs::read(dir.path("m1")).unwrap();
    let daemon = Daemon::serve(&dir, &[]);
    check(&mut connect(port), 0..100, 1);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(10), "{}", daemon.log());
    let events = daemon.ctl(&["events"]);
    assert!(events.contains("member-unrecognised") && events.contains(&path(&dir, "m1")), "{events}");
    assert!(fs::read(dir.path("m1")).unwrap() == before, "what was not recognised was written to");
    // It is free to be taken in again.
    daemon.ctl(&["--yes", "member", "replace", "a", "1", "--with", &path(&dir, "m1"), "--wipe"]);
    daemon.wait_healthy("a");
    daemon.ctl(&["member", "fail", "a", "0"]);
    check(&mut connect(port), 0..100, 1);
    daemon.stop();
}

#[test]
fn an_array_that_cannot_be_assembled_is_failed_and_can_be_forgotten() {
    let dir = TempDir::new("forget");
    let daemon = Daemon::serve(&dir, &[]);
    set_up(&daemon, &dir, "5", 3, 0);
    daemon.stop();
    for m in ["m1", "m2"] {
        fs::rename(dir.path(m), dir.path(&format!("{m}-away"))).unwrap();
    }
    let daemon = Daemon::serve(&dir, &[]);
    assert_eq!(exit_code(&daemon, &["array", "show", "a", "--check"]), Some(12));
    let assemble = ["array", "assemble", &path(&dir, "m0")];
    daemon.wait_for("an end of the wait", || daemon.ctl(&["events"]).contains("array-not-assembled"));
    let texts = ["volume 'v'", "survives the loss of 1", &path(&dir, "m1"), "Nothing was changed", "--force"];
    daemon.refused(&assemble, 4, &texts);
    daemon.refused(
        &["volume", "create", "a", "w", "--level", "0"],
        4,
        &["array 'a' is not assembled", "volume 'v'", "raidctl array assemble"],
    );
    daemon.refused(&["--yes", "array", "delete", "a"], 4, &["array 'a' is not assembled", "raidctl array stop a"]);
    daemon.refused(&["array", "stop", "a"], 4, &[NQN, "raidctl export delete"]);
    daemon.ctl(&["--yes", "export", "delete", NQN]);
    daemon.ctl(&["array", "stop", "a"]);
    daemon.refused(&["array", "show", "a"], 3, &["no array 'a'"]);
    for m in ["m1", "m2"] {
        fs::rename(dir.path(&format!("{m}-away")), dir.path(m)).unwrap();
    }
    daemon.ctl(&["array", "assemble", &path(&dir, "m0"), &path(&dir, "m1"), &path(&dir, "m2")]);
    daemon.wait_healthy("a");
    daemon.stop();
}

#[test]
fn an_operator_may_assemble_what_a_start_still_waits_for_and_it_is_one_array() {
    let dir = TempDir::new("once");
    let daemon = Daemon::serve(&dir, &[]);
    set_up(&daemon, &dir, "5", 3, 0);
    daemon.stop();
    fs::rename(dir.path("m2"), dir.path("away")).unwrap();
    let daemon = Daemon::serve(&dir, &["--assembly-wait", "2"]);
    daemon.ctl(&["array", "assemble", &path(&dir, "m0"), &path(&dir, "m1")]);
    fs::rename(dir.path("away"), dir.path("m2")).unwrap();
    daemon.ctl(&["member", "remove", "a", "2"]);
    // By now the start has seen m2, and gone on to look at the array; a second assembly would have left a trace.
    daemon.stop();
    let daemon = Daemon::serve(&dir, &[]);
    daemon.wait_for("one history", || exit_code(&daemon, &["array", "show", "a", "--check"]) == Some(10));
    assert!(!daemon.log().contains("two histories"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn members_of_different_sizes_are_told_apart() {
    let dir = TempDir::new("sizes");
    let daemon = Daemon::serve(&dir, &[]);
    for (name, mib) in [("m0", 48u64), ("m1", 64), ("m2", 64)] {
        fs::File::create(dir.path(name)).unwrap().set_len(mib << 20).unwrap();
    }
    let members: Vec<String> = (0..3).map(|n| path(&dir, &format!("m{n}"))).collect();
    daemon.ctl(&["array", "create", "a", "--extent", "1MiB", "-m", &members[0], "-m", &members[1], "-m", &members[2]]);
    let events = daemon.ctl(&["events"]);
    let (smallest, more) = ("smallest has 48 MiB", "16 MiB more");
    assert!(events.contains("sizes-differ") && events.contains(smallest) && events.contains(more), "{events}");
    // The smallest rules a classic width.
    daemon.ctl(&["volume", "create", "a", "v", "--level", "5", "--size", "92MiB"]);
    daemon.refused(
        &["volume", "create", "a", "w", "--level", "5", "--size", "8MiB"],
        4,
        &["no space", "volume 'w'", "8 MiB asked for", "Ask for less"],
    );
    daemon.stop();
}

/// Raw bytes to the target, and the termination that comes back.
fn terminated(port: u16, greet: bool, bytes: &[u8]) -> (u16, u32) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    if greet {
        stream.write_all(ICReq::new(0, Digests::default()).as_bytes()).unwrap();
        let mut answer = [0; 128];
        stream.read_exact(&mut answer).expect("an ICResp");
        assert_eq!(answer[0], PduType::ICResp as u8);
    }
    stream.write_all(bytes).unwrap();
    let mut answer = [0; 24];
    stream.read_exact(&mut answer).expect("a C2HTermReq");
    assert_eq!(answer[0], PduType::C2HTermReq as u8);
    let term = TermReq::read_from_bytes(&answer[..]).expect("24 bytes");
    // What was wrong comes back, and then the end: of the stream, or by a reset because more had been sent.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut rest = Vec::new();
    if let Err(e) = stream.read_to_end(&mut rest) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "left open");
    }
    (term.fes.get(), term.fei.get())
}

#[test]
fn each_wrong_pdu_gets_its_status_and_a_healthy_host_goes_on() {
    let dir = TempDir::new("fes");
    let daemon = Daemon::serve(&dir, &[]);
    let port = set_up(&daemon, &dir, "5", 3, 0);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = std::thread::spawn({
        let (stop, written) = (stop.clone(), written.clone());
        move || writer(port, 256, stop, written)
    });
    daemon.wait_for("writes", || written.load(Ordering::Relaxed) > 50);
    let d = Digests::default();
    let ic = ICReq::new(0, d);
    let field = Fes::INVALID_HEADER_FIELD.0;
    let sequence = Fes::SEQUENCE_ERROR.0;
    let with = |bytes: &[u8], at: usize, value: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let capsule = CapsuleCmd::new(Sqe::default(), 0, d, 0);
    let data = H2CData::new(5, 1, 0, 512, true, d, 0);
    let cases: [(&str, bool, Vec<u8>, u16, u32); 8] = [
        ("a type that is none", false, with(ic.as_bytes(), 0, &[0x55]), field, 0),
        ("a type of the controller's", true, with(capsule.as_bytes(), 0, &[PduType::CapsuleResp as u8]), field, 0),
        ("an ICReq of a wrong HLEN", false, with(ic.as_bytes(), 2, &[127]), field, 2),
        ("an ICReq of a wrong PLEN", false, with(ic.as_bytes(), 4, &129u32.to_le_bytes()), field, 4),
        ("a capsule of a wrong HLEN", true, with(capsule.as_bytes(), 2, &[71]), field, 2),
        ("a second ICReq", true, ic.as_bytes().to_vec(), sequence, 0),
        ("a capsule before the ICReq", false, capsule.as_bytes().to_vec(), sequence, 0),
        ("data for no command", true, [data.as_bytes(), &[0; 512]].concat(), field, 10),
    ];
    for (what, greet, bytes, fes, fei) in cases {
        let before = written.load(Ordering::Relaxed);
        assert_eq!(terminated(port, greet, &bytes), (fes, fei), "{what}");
        daemon.wait_for("writes by the healthy host", || written.load(Ordering::Relaxed) > before + 5);
    }
    stop.store(true, Ordering::Relaxed);
    let state = load.join().expect("the writer");
    let mut initiator = connect(port);
    for (block, (generation, _)) in (0u64..).zip(&state).filter(|(_, s)| s.0 != 0) {
        check(&mut initiator, block..block + 1, *generation);
    }
    daemon.stop();
}

#[test]
fn garbage_on_the_page_is_closed_and_the_page_goes_on() {
    let dir = TempDir::new("page");
    let daemon = Daemon::serve_with_page(&dir);
    let log = daemon.log();
    let at =
        log.split("page: http://").nth(1).and_then(|l| l.split('/').next()).expect("the page's address").to_string();
    let mut long = b"GET /".to_vec();
    long.resize(1 << 20, b'a');
    let half_open = TcpStream::connect(&at).expect("a connection");
    for bytes in [&b"\0\0garbage\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", &[0xFF; 100_000], &long] {
        let mut stream = TcpStream::connect(&at).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // It may be closed before all is sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "left open");
        }
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        let mut stream = TcpStream::connect(&at).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("the page");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    }
    daemon.ctl(&["status"]);
    drop(half_open);
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
    for text in [daemon.socket.display().to_string().as_str(), "in use by a raidd that runs; stop that one"] {
        assert!(second.log().contains(text), "no '{text}' in {}", second.log());
    }
    // The same members, another state.
    let other = TempDir::new("two-other");
    let second = Daemon::serve(&other, &[]);
    let who = format!("process {}", daemon.pid());
    let assemble = ["array", "assemble", &path(&dir, "m0"), &path(&dir, "m1")];
    second.refused(&assemble, 4, &[&path(&dir, "m0"), "locked by another process", &who, "stop that one first"]);
    second.stop();
    daemon.kill();
    let daemon = Daemon::serve(&dir, &[]);
    daemon.wait_healthy("a");
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
    let port = export(&daemon, "a/v", NQN);
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
    daemon.refused(&create, 4, &[&members[0], "array 'a'", "--wipe"]);
    create.extend(["--wipe", "--yes"]);
    daemon.ctl(&create);
    daemon.ctl(&["volume", "create", "b", "v", "--level", "5", "--size", "8MiB"]);
    let port = export(&daemon, "b/v", NQN);
    let mut buffer = vec![1; BLOCK];
    connect(port).read(1, 7, &mut buffer).expect("a read");
    assert!(buffer.iter().all(|b| *b == 0), "the earlier array's data shows through");
    daemon.stop();
}
