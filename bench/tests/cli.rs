//! The program as it is called: exit codes, messages, files.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn raidbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raidbench")).args(arguments).stdin(Stdio::null()).output().expect("raidbench runs")
}

fn refused(arguments: &[&str], code: i32, word: &str) {
    let output = raidbench(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    assert!(message.contains(word), "{arguments:?}: {message}");
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("raidbench-cli-{}-{name}", std::process::id()))
}

#[test]
fn wrong_arguments_are_exit_code_2() {
    refused(&[], 2, "nothing to load");
    refused(&["--target", "127.0.0.1:1"], 2, "--nqn");
    refused(&["run", "--target", "127.0.0.1:1", "--nqn", "nqn.x", "--bs", "1000"], 2, "512");
    refused(&["--array", "--target", "127.0.0.1:1", "--nqn", "nqn.x"], 2, "cannot be used with");
    refused(&["--array", "--time", "0"], 2, "--time");
    refused(&["--array", "--verify"], 2, "--verify");
    refused(&["--array", "--rw", "sideways"], 2, "randread");
    refused(&["--array", "--vs", "level=raid9"], 2, "raid9");
    refused(&["--target", "127.0.0.1:1", "--nqn", "nqn.x", "--core", "0,1"], 2, "raise --queues");
    refused(&["rmw", "/nowhere", "4k"], 2, "");
    refused(&["rmw", "/nowhere", "1000", "1"], 2, "512");
}

#[test]
fn what_cannot_be_run_is_exit_code_3() {
    refused(&["--target", "127.0.0.1:1", "--nqn", "nqn.x", "--time", "0.1"], 3, "cannot connect");
    refused(&["--target", "nonsense", "--nqn", "nqn.x"], 3, "not an address and a port");
    refused(&["rmw", "/nowhere", "4k", "1"], 3, "/nowhere");
    refused(&["rmw", "/tmp", "4k", "1"], 3, "neither a block device nor a file");
}

#[test]
fn a_missing_raidd_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_raidbench"))
        .args(["seeds", "activations"])
        .env("RAIDD", "/nowhere/raidd")
        .output()
        .expect("raidbench runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/raidd"));
}

#[test]
fn raidd_answers_are_rendered_and_written() {
    // A script in raidd's place, which checks that it is asked as agreed.
    let script = temporary("raidd");
    let json = temporary("array.json");
    fs::write(
        &script,
        "#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'bench array --json -' ] || exit 9\n\
         echo '{\"seconds\":1,\"iops\":1000,\"read_iops\":1000,\"write_iops\":0,\"mib_per_s\":4,\"errors\":2,\
         \"errors_by_status\":{\"write fault\":2},\"memcpy_gib_per_s\":9,\
         \"array\":{\"member_reads\":5,\"member_writes\":6,\"activations\":7,\"full_stripe\":8,\"rmw\":9,\"rcw\":10,\
         \"parity_kernel\":\"gfni\"}}'\n",
    )
    .unwrap();
    let mut permissions = fs::metadata(&script).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&script, permissions).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_raidbench"))
        .args(["--array", "--json"])
        .arg(&json)
        .env("RAIDD", &script)
        .output()
        .expect("raidbench runs");
    // Failed I/Os are never a success, wherever they were counted.
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("full-stripe writes") && table.contains("gfni"), "{table}");
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(value["results"][0]["array"]["rcw"], 10);
    assert_eq!(value["tables"].as_array().unwrap().len(), 1);
    fs::remove_file(script).unwrap();
    fs::remove_file(json).unwrap();
}

#[test]
fn rmw_destroys_nothing_without_the_path_typed() {
    let path = temporary("drive");
    let name = path.to_str().unwrap();
    fs::write(&path, vec![7; 16 << 10]).unwrap();
    refused(&["rmw", name, "4k", "10"], 2, "nothing was written");
    let mut child = Command::new(env!("CARGO_BIN_EXE_raidbench"))
        .args(["rmw", name, "4k", "10"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"y\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert!(fs::read(&path).unwrap().iter().all(|b| *b == 7));
    fs::remove_file(path).unwrap();
}

#[test]
fn rmw_compares_drives_side_by_side_and_knows_the_same_one_by_another_path() {
    let (a, b, link) = (temporary("a"), temporary("b"), temporary("link"));
    fs::write(&a, vec![0; 16 << 10]).unwrap();
    fs::write(&b, vec![0; 16 << 10]).unwrap();
    fs::hard_link(&a, &link).unwrap();
    let [a_name, b_name, link_name] = [&a, &b, &link].map(|p| p.to_str().unwrap());
    let output = raidbench(&["rmw", "--yes", a_name, b_name, "512", "30", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["results"].as_array().unwrap().len(), 2);
    assert_eq!(value["tables"][0]["columns"][2], b_name);
    refused(&["rmw", "--yes", a_name, link_name, "4k", "1"], 2, "same drive");
    refused(&["rmw", "--yes", a_name, "64k", "1"], 3, "too few");
    for path in [a, b, link] {
        fs::remove_file(path).unwrap();
    }
}
