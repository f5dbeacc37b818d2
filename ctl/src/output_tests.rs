use super::*;

fn array(name: &str, state: &str, failed: u32) -> Array {
    Array {
        name: name.into(),
        uuid: "6a2f5a4e-1b0c-4a76-9a35-8f3c0f7f2a11".into(),
        state: state.into(),
        reason: "member 1 is failed and no spare is left; replace it".into(),
        active_members: 4,
        spare_members: 1,
        failed_members: failed,
        volumes: 2,
        capacity_bytes: 5 << 30,
        free_bytes: 3 << 29,
        extent_bytes: 16 << 20,
        shards: 16,
        generation: 12,
    }
}

fn member(number: u32, state: &str, address: &str) -> Member {
    Member {
        array: "pool".into(),
        number,
        address: address.into(),
        uuid: "u".into(),
        state: state.into(),
        reason: "present".into(),
        size_bytes: 1 << 30,
        block_size_bytes: 4096,
        used_bytes: 512 << 20,
        read_errors: 2,
        write_errors: 1,
        repaired_errors: 2,
    }
}

fn volume() -> Volume {
    Volume {
        array: "pool".into(),
        name: "data".into(),
        number: 0,
        uuid: "u".into(),
        state: "degraded".into(),
        reason: "member 1 is failed".into(),
        level: "raid5".into(),
        width: 5,
        chunk_bytes: 64 << 10,
        size_bytes: 10 << 30,
        allocated_bytes: 25 << 29,
        block_size_bytes: 4096,
        policy: "resync".into(),
        dirty: true,
        groups: 8,
        degraded_groups: 8,
        unsynced_groups: 0,
        regions: None,
    }
}

fn operation(state: &str) -> Operation {
    Operation {
        id: "pool-7".into(),
        kind: "rebuild".into(),
        target: "pool member 5".into(),
        state: state.into(),
        reason: String::new(),
        done_bytes: 256 << 20,
        total_bytes: 1 << 30,
        start_time: Some("2026-12-01T00:00:00Z".into()),
        end_time: None,
        can_cancel: true,
        can_pause: false,
        elapsed: Some(std::time::Duration::from_secs(4)),
    }
}

fn longest(text: &str) -> usize {
    text.lines().map(|l| l.chars().count()).max().unwrap_or(0)
}

#[test]
fn arrays_as_a_table() {
    let list = [array("pool", "degraded", 1), array("scratch", "healthy", 0)];
    assert_eq!(
        arrays_at(&list, Some(80)),
        "\
NAME     STATE     MEMBERS                VOLUMES     FREE  CAPACITY
pool     degraded  4 + 1 spare, 1 failed        2  1.5 GiB     5 GiB
scratch  healthy   4 + 1 spare                  2  1.5 GiB     5 GiB
"
    );
    assert_eq!(arrays_at(&[], Some(80)), "no arrays\n");
}

#[test]
fn volumes_as_a_table() {
    assert_eq!(
        volumes_at(&[volume()], Some(80)),
        "\
VOLUME     STATE     LEVEL  WIDTH   CHUNK    SIZE  POLICY
pool/data  degraded  raid5      5  64 KiB  10 GiB  resync
"
    );
}

#[test]
fn operations_as_a_table() {
    assert_eq!(
        operations_at(&[operation("running")], Some(100)),
        "\
OPERATION  KIND     TARGET         STATE    PROGRESS            RATE  TIME
pool-7     rebuild  pool member 5  running  25.0% of 1 GiB  64 MiB/s  12 s left
"
    );
    assert_eq!(
        operation_line(&operation("running")),
        "pool-7 rebuild of pool member 5: running, 25.0% of 1 GiB, 64 MiB/s, 12 s left"
    );
    let ended = Operation { reason: "member 2 failed".into(), ..operation("failed") };
    assert_eq!(
        operation_line(&ended),
        "pool-7 rebuild of pool member 5: failed, 25.0% of 1 GiB, 64 MiB/s, after 4 s (member 2 failed)"
    );
    let first = Operation { done_bytes: 0, ..operation("running") };
    assert_eq!(operation_line(&first), "pool-7 rebuild of pool member 5: running, 0.0% of 1 GiB");
}

#[test]
fn no_bad_state_without_its_reason() {
    let list = [array("pool", "degraded", 1), array("scratch", "healthy", 0)];
    let reason = "array pool is degraded: member 1 is failed and no spare is left; replace it\n";
    assert!(super::arrays(&list).ends_with(&format!("\n\n{reason}")), "{}", super::arrays(&list));
    let failed = super::members(&[member(0, "active", "/dev/sda"), member(1, "failed", "/dev/sdb")]);
    assert!(failed.ends_with("\n\nmember 1 of array pool is failed: present\n"), "{failed}");
    assert_eq!(super::members(&[member(0, "active", "/dev/sda")]).lines().count(), 2, "nothing to say");
}

#[test]
fn what_is_not_assembled_shows_no_empty_fields() {
    let array = Array { uuid: String::new(), ..array("pool", "assembling", 0) };
    let details = ArrayDetails { array, member_list: Vec::new(), volume_list: Vec::new(), operation_list: Vec::new() };
    assert_eq!(super::array(&details).lines().count(), 2);
}

#[test]
fn times_and_numbers_of_things() {
    let time = |s| super::time(std::time::Duration::from_secs(s));
    assert_eq!([time(0), time(119), time(125), time(7265)], ["0 s", "119 s", "2 min 5 s", "2 h 1 min"]);
    assert_eq!([count(0, "fault"), count(1, "fault"), count(2, "fault")], ["0 faults", "1 fault", "2 faults"]);
}

#[test]
fn long_names_wrap_on_a_terminal_and_never_elsewhere() {
    let address = format!("/dev/disk/by-id/{}", "nvme-VENDOR_MODEL_".repeat(6));
    let list = [member(0, "active", &address)];
    let narrow = members_at(&list, Some(80));
    assert!(longest(&narrow) <= 80, "{narrow}");
    let wide = members_at(&list, None);
    assert_eq!(wide.lines().count(), 2, "one line for each record: {wide}");
    assert!(wide.contains(&address));
    let export = Export {
        volume: "pool/data".into(),
        nqn: "nqn.2014-08.org.nvmexpress:uuid:6a2f5a4e-1b0c-4a76-9a35-8f3c0f7f2a11".into(),
        nsid: 1,
        state: "active".into(),
        reason: String::new(),
        listen: vec!["127.0.0.1:4420".into()],
        any_host: false,
        hosts: vec!["nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".into()],
        controllers: 2,
    };
    let narrow = exports_at(&[export], Some(80));
    assert!(longest(&narrow) <= 80, "{narrow}");
}

#[test]
fn details_as_pairs() {
    let text = super::volume(&volume());
    assert_eq!(
        text,
        "\
Volume:      pool/data
State:       degraded: member 1 is failed
UUID:        u
Level:       raid5, 5 wide, 64 KiB chunks
Size:        10 GiB, occupies 12.5 GiB
Block size:  4 KiB
Policy:      resync, dirty
Groups:      8, 8 degraded, 0 not in sync
"
    );
    let details = ArrayDetails {
        array: array("pool", "degraded", 1),
        member_list: vec![member(0, "active", "/dev/sda")],
        volume_list: vec![volume()],
        operation_list: vec![operation("running"), operation("succeeded")],
    };
    let text = super::array(&details);
    assert!(text.contains("State:       degraded: member 1 is failed and no spare is left; replace it\n"), "{text}");
    assert_eq!(text.matches("pool-7").count(), 1, "only what runs: {text}");
    let json = serde_json::to_value(&details).expect("JSON");
    assert_eq!(json["name"], "pool");
    assert_eq!(json["member_list"][0]["size_bytes"], 1 << 30);
    assert_eq!(json["operation_list"][1]["state"], "succeeded");
}

#[test]
fn json_and_yaml_keep_their_field_names() {
    assert_eq!(
        serde_json::to_string(&member(3, "failed", "/dev/sdd")).expect("JSON"),
        r#"{"array":"pool","number":3,"address":"/dev/sdd","uuid":"u","state":"failed","reason":"present","size_bytes":1073741824,"block_size_bytes":4096,"used_bytes":536870912,"read_errors":2,"write_errors":1,"repaired_errors":2}"#
    );
    assert_eq!(
        serde_norway::to_string(&operation("running")).expect("YAML"),
        "\
id: pool-7
kind: rebuild
target: pool member 5
state: running
reason: ''
done_bytes: 268435456
total_bytes: 1073741824
start_time: 2026-12-01T00:00:00Z
end_time: null
can_cancel: true
can_pause: false
"
    );
}

#[test]
fn shards_are_drawn_together() {
    assert_eq!(ranges(&[]), "");
    assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3 8 10-11");
}
