//! The real raidctl against the server. Waiting for it blocks the test's own thread; the server runs on the others.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use raidd::control::backend::Backend;
use serde_json::Value;

use crate::Server;

struct Done {
    code: i32,
    out: String,
    err: String,
}

impl Done {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err))
    }
}

fn command(server: &Server, arguments: &str) -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_raidd")).with_file_name("raidctl");
    assert!(path.exists(), "{} is missing: run 'cargo build --workspace --bins' first", path.display());
    let mut command = Command::new(path);
    command.arg("--server").arg(format!("unix:{}", server.socket().display())).args(arguments.split(' '));
    command.env_remove("COLUMNS").env_remove("RAIDD_SERVER").stdin(Stdio::null());
    command
}

fn run(server: &Server, arguments: &str) -> Done {
    let output = command(server, arguments).output().expect("raidctl runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let done = Done { code: output.status.code().expect("a code"), out: text(output.stdout), err: text(output.stderr) };
    assert!(!done.err.contains("panicked") && !done.err.contains("Status {"), "{}", done.err);
    done
}

/// Must succeed.
fn ok(server: &Server, arguments: &str) -> Done {
    let done = run(server, arguments);
    assert_eq!(done.code, 0, "{arguments}: {}{}", done.out, done.err);
    done
}

/// Must fail with this exit code.
fn fails(server: &Server, code: i32, arguments: &str) -> String {
    let done = run(server, arguments);
    assert_eq!(done.code, code, "{arguments}: {}{}", done.out, done.err);
    assert!(done.err.starts_with("raidctl: ") || code == 2, "{}", done.err);
    done.err
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arrays_life() {
    let server = Server::start(false);
    let made = ok(&server, "array create pool --member /dev/a /dev/b --member /dev/c --member /dev/d --spares 1");
    assert!(made.out.contains("array pool is created with 3 members and 1 spare"), "{}", made.out);
    ok(&server, "volume create pool data --level 5 --chunk 64KiB --size 1.5GiB --width 3 --block-size 512");
    let volume = ok(&server, "volume show pool/data -o json").json();
    assert_eq!(
        (&volume["size_bytes"], &volume["level"], &volume["block_size_bytes"]),
        (&Value::from(3u64 << 29), &Value::from("raid5"), &Value::from(512))
    );
    let export = "export create pool/data --nqn nqn.2026-01.org.example:pool --listen 127.0.0.1:4420 --any-host";
    let made = ok(&server, export);
    assert!(
        made.out.contains("nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.org.example:pool"),
        "{}",
        made.out
    );
    ok(&server, "array show pool --check");
    ok(&server, "member fail pool /dev/b");
    let message = fails(&server, 10, "array show pool --check");
    assert!(message.contains("member 1 is failed; replace it"), "{message}");

    let operation = ok(&server, "member replace pool b --with new.img --size 1GiB -o json").json();
    assert_eq!((&operation["id"], &operation["state"]), (&Value::from("pool-1"), &Value::from("running")));
    let members = ok(&server, "member list pool -o json").json();
    let address = members[4]["address"].as_str().expect("an address");
    assert!(address.starts_with('/') && address.ends_with("/new.img"), "{address}: raidd's folder is another one");
    fails(&server, 11, "array show pool --check");
    let message = fails(&server, 7, "operation wait pool-1 --timeout 50ms");
    assert!(message.contains("go on"), "{message}");

    let mut watch = command(&server, "operation watch -o json").stdout(Stdio::piped()).spawn().expect("started");
    let lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
    let mut percents = Vec::new();
    for line in lines {
        let line = line.expect("a line");
        let operation: Value = serde_json::from_str(&line).expect("JSON");
        percents.push(operation["done_bytes"].as_u64().expect("a number") * 100 / (1 << 30));
        match percents.last() {
            Some(0) => server.backend.advance("pool-1", 50),
            Some(50) => server.backend.advance("pool-1", 100),
            _ => assert_eq!(operation["state"], "succeeded"),
        }
    }
    assert_eq!(percents, [0, 50, 100]);
    assert!(watch.wait().expect("ended").success());
    ok(&server, "operation wait pool-1");
    ok(&server, "array show pool --check");

    let status = ok(&server, "status").out;
    for part in ["version 9.9.9", "2023-11-14T22:13:20", "pool: 0-3", "pool/data", "nqn.2026-01.org.example:pool"] {
        assert!(status.contains(part), "{part} is not in\n{status}");
    }
    let events = ok(&server, "events -n 1").out;
    assert!(events.lines().count() == 1 && events.contains("warning member-failed arrays/pool/members/1"), "{events}");
    let yaml = ok(&server, "array list -o yaml").out;
    assert!(yaml.starts_with("- name: pool\n"), "{yaml}");

    let message = fails(&server, 4, "volume delete pool/data --yes");
    assert!(message.contains("delete the export first"), "{message}");
    ok(&server, "export delete pool/data");
    ok(&server, "volume delete pool data --yes");
    ok(&server, "array delete pool --yes");
    assert_eq!(ok(&server, "array list").out, "no arrays\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_messages() {
    let server = Server::start(true);
    server.backend.put_array("pool", 3);
    fails(&server, 2, "array create");
    fails(&server, 2, "volume create pool data --level 5 --size 4GB");
    fails(&server, 2, "array create a/b --member /dev/a /dev/b");
    fails(&server, 3, "array show lake");
    fails(&server, 3, "member fail pool nothing");
    fails(&server, 3, "member fail pool 77");
    fails(&server, 4, "array create pool --member /dev/a /dev/b");
    fails(&server, 4, "member remove pool 1");
    let message = fails(&server, 4, "array assemble /dev/a");
    assert!(message.contains("--force") && message.contains("loses"), "{message}");
    ok(&server, "array assemble /dev/a /dev/b --force");
    // Nobody to ask: refused, and nothing done.
    for destructive in
        ["array delete pool", "array create new --member /dev/a /dev/b --wipe", "member add pool /dev/x --wipe"]
    {
        let message = fails(&server, 4, destructive);
        assert!(message.contains("--yes"), "{message}");
    }
    assert_eq!(server.backend.arrays().len(), 2);
    let done = run(&server, "array show lake -o json");
    let error: Value = serde_json::from_str(&done.err).expect("JSON");
    assert_eq!(
        (&error["error"]["reason"], &error["error"]["exit_code"]),
        (&Value::from("ARRAY_NOT_FOUND"), &Value::from(3))
    );

    let id = "6a2f5a4e-1b0c-4a76-9a35-8f3c0f7f2a11";
    for _ in 0..2 {
        ok(&server, &format!("--request-id {id} array create twice --member /dev/a /dev/b"));
    }
    fails(&server, 2, &format!("--request-id {id} array create thrice --member /dev/a /dev/b"));

    server.backend.put_array("empty", 2);
    let replaced = ok(&server, "member replace empty 0 --with /dev/new --wait").out;
    assert!(replaced.contains("nothing to rebuild"), "{replaced}");

    let made = ok(&server, "fault add pool 1 --on read,write --error media --offset 1MiB --length 4K").out;
    assert!(made.contains("fault 1 is in force: error media on read,write of pool member 1"), "{made}");
    ok(&server, "fault add pool 1 --corrupt");
    ok(&server, "fault add pool 1 --on flush --delay 50ms");
    let list = ok(&server, "fault list").out;
    assert!(list.contains("4 KiB at 1 MiB") && list.contains("corruption"), "{list}");
    assert!(ok(&server, "fault clear 1").out.contains("removed 1 fault"));
    fails(&server, 3, "fault clear 1");
    assert!(ok(&server, "fault clear").out.contains("2 faults"));

    let socket = server.socket();
    server.stop().await;
    let gone = Server::start(false);
    std::fs::remove_file(gone.socket()).expect("removed");
    let message = fails(&gone, 5, "status");
    assert!(message.contains("does not answer") && message.contains("--server"), "{message}");
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_until_the_daemon_stops() {
    let server = Server::start(false);
    server.backend.put_array("pool", 3);
    let mut child =
        command(&server, "events --follow").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    // Published again and again, because the first ones may come before the stream is open; it starts with the history.
    server.backend.fail_member("pool", 0).await.expect("failed");
    let line = lines.next().expect("not at the end").expect("a line");
    assert!(line.contains("warning member-failed arrays/pool/members/0: the member is failed"), "{line}");
    server.backend.fail_member("pool", 1).await.expect("failed");
    let line = lines.next().expect("not at the end").expect("a line");
    assert!(line.contains("arrays/pool/members/1"), "{line}");
    server.stop().await;
    let output = child.wait_with_output().expect("waited");
    assert_eq!(output.status.code(), Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_manual_need_no_daemon() {
    let server = Server::start(false);
    std::fs::remove_file(server.socket()).expect("removed");
    for shell in ["bash", "zsh", "fish"] {
        assert!(ok(&server, &format!("completion {shell}")).out.contains("raidctl"));
    }
    let page = ok(&server, "man").out;
    assert!(page.starts_with(".") && page.contains("raidctl") && page.contains("Exit codes"), "{page}");
    let dir = server.socket().with_file_name("man");
    ok(&server, &format!("man --dir {}", dir.display()));
    for name in ["raidctl.1", "raidctl-array-create.1", "raidctl-operation-wait.1"] {
        assert!(dir.join(name).exists(), "{name}");
    }
}
