//! raid.v1 as any client sees it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use raid_core::manager::Severity;
use raid_proto::details::error_info;
use raid_proto::prost_types;
use raid_proto::v1;
use raid_proto::v1::array_service_client::ArrayServiceClient;
use raid_proto::v1::event_service_client::EventServiceClient;
use raid_proto::v1::export_service_client::ExportServiceClient;
use raid_proto::v1::fault_service_client::FaultServiceClient;
use raid_proto::v1::member_service_client::MemberServiceClient;
use raid_proto::v1::operation_service_client::OperationServiceClient;
use raid_proto::v1::volume_service_client::VolumeServiceClient;
use raid_proto::v1::watch_response::Change;
use raidd::control::backend::Backend;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::{Server, memory};

fn create(name: &str, request_id: &str) -> v1::CreateArrayRequest {
    let members = (0..4).map(|n| format!("/dev/{name}{n}")).collect();
    v1::CreateArrayRequest {
        request_id: request_id.into(),
        array_id: name.into(),
        spec: Some(v1::ArraySpec { members, spares: 1, ..Default::default() }),
        ..Default::default()
    }
}

fn reason(status: &Status) -> String {
    let info = error_info(status).expect("every error has details");
    assert_eq!(info.domain, "raidd");
    info.reason
}

/// Polls without a time limit of its own: a hang is the test runner's to report.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_change_is_done_once_for_a_request_id() {
    let server = Server::start(false);
    let mut arrays = ArrayServiceClient::new(server.connect().await);
    let id = Uuid::new_v4().to_string();
    let first = arrays.create_array(create("pool", &id)).await.expect("created").into_inner();
    assert_eq!(first.name, "arrays/pool");
    assert_eq!(first.status.as_ref().expect("a status").state(), v1::ArrayState::Healthy);
    assert_eq!(first.status.as_ref().expect("a status").spare_members, 1);
    let again = arrays.create_array(create("pool", &id)).await.expect("the same answer").into_inner();
    assert_eq!(again, first);
    assert_eq!(server.backend.begun.load(Ordering::SeqCst), 1);

    let other = arrays.create_array(create("lake", &id)).await.expect_err("refused");
    assert_eq!((other.code(), reason(&other).as_str()), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
    let stop = v1::StopArrayRequest { request_id: id, name: "arrays/pool".into() };
    assert_eq!(reason(&arrays.stop_array(stop).await.expect_err("refused")), "REQUEST_ID_REUSED");
    assert_eq!(server.backend.arrays().len(), 1, "nothing was changed");

    let new_id = Uuid::new_v4().to_string();
    let exists = arrays.create_array(create("pool", &new_id)).await.expect_err("refused");
    assert_eq!((exists.code(), reason(&exists).as_str()), (Code::AlreadyExists, "ALREADY_EXISTS"));
    // A refusal is not remembered: once the way is free, the same request works.
    let name = "arrays/pool".to_owned();
    arrays.delete_array(v1::DeleteArrayRequest { request_id: String::new(), name }).await.expect("deleted");
    arrays.create_array(create("pool", &new_id)).await.expect("created");
    server.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_does_not_stop_its_change() {
    let server = Server::start(false);
    let channel = server.connect().await;
    let held = server.backend.gate.acquire().await.expect("the gate");
    for id in [String::new(), Uuid::new_v4().to_string()] {
        let name = if id.is_empty() { "anonymous" } else { "named" };
        let begun = server.backend.begun.load(Ordering::SeqCst);
        let mut client = ArrayServiceClient::new(channel.clone());
        let call = tokio::spawn(async move { client.create_array(create(name, &id)).await });
        until(|| server.backend.begun.load(Ordering::SeqCst) > begun).await;
        call.abort();
        assert!(call.await.expect_err("aborted").is_cancelled());
    }
    // The server must have seen the cancellation before the change may go on; a call on the same connection comes after it.
    ArrayServiceClient::new(channel.clone()).list_arrays(v1::ListArraysRequest::default()).await.expect("a list");
    drop(held);
    until(|| server.backend.ended.load(Ordering::SeqCst) == 2).await;
    let names: Vec<String> = server.backend.arrays().into_iter().map(|a| a.name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn errors_say_what_and_what_to_do() {
    let server = Server::start(false);
    server.backend.put_array("pool", 3);
    let channel = server.connect().await;
    let mut arrays = ArrayServiceClient::new(channel.clone());
    let missing = arrays.get_array(v1::GetArrayRequest { name: "arrays/lake".into() }).await.expect_err("not there");
    assert_eq!(missing.code(), Code::NotFound);
    assert!(missing.message().contains("'lake'") && missing.message().contains("raidctl array list"), "{missing}");
    let info = error_info(&missing).expect("details");
    assert_eq!((info.reason.as_str(), info.metadata["array"].as_str()), ("ARRAY_NOT_FOUND", "lake"));

    for name in ["", "pool", "arrays/", "arrays/pool/members/1"] {
        let e = arrays.get_array(v1::GetArrayRequest { name: name.into() }).await.expect_err("no name");
        assert_eq!((e.code(), reason(&e).as_str()), (Code::InvalidArgument, "NAME_MALFORMED"), "{name}");
    }
    let mut bad = create("a/b", "");
    assert_eq!(reason(&arrays.create_array(bad.clone()).await.expect_err("refused")), "NAME_INVALID");
    bad = create("lake", "not-a-uuid");
    assert_eq!(reason(&arrays.create_array(bad.clone()).await.expect_err("refused")), "REQUEST_ID_MALFORMED");
    bad = create("lake", "");
    bad.spec.as_mut().expect("a spec").spares = 4;
    assert_eq!(reason(&arrays.create_array(bad.clone()).await.expect_err("refused")), "TOO_MANY_SPARES");
    bad.spec = None;
    assert_eq!(reason(&arrays.create_array(bad).await.expect_err("refused")), "MEMBERS_MISSING");

    let mut volumes = VolumeServiceClient::new(channel.clone());
    let volume = |spec: v1::VolumeSpec| v1::CreateVolumeRequest {
        parent: "arrays/pool".into(),
        volume_id: "data".into(),
        spec: Some(spec),
        ..Default::default()
    };
    let good = v1::VolumeSpec { level: v1::Level::Raid5.into(), ..Default::default() };
    for (spec, why) in [
        (v1::VolumeSpec { level: 0, ..good }, "LEVEL_MISSING"),
        (v1::VolumeSpec { level: 77, ..good }, "LEVEL_MISSING"),
        (v1::VolumeSpec { block_size_bytes: 1024, ..good }, "BLOCK_SIZE_UNKNOWN"),
        (v1::VolumeSpec { size_bytes: 4097, ..good }, "SIZE_NOT_ALIGNED"),
        (v1::VolumeSpec { width: 70000, ..good }, "WIDTH_OUT_OF_RANGE"),
        (v1::VolumeSpec { policy: 9, ..good }, "POLICY_UNKNOWN"),
    ] {
        assert_eq!(reason(&volumes.create_volume(volume(spec)).await.expect_err("refused")), why);
    }
    let made = volumes.create_volume(volume(good)).await.expect("made").into_inner().spec.expect("a spec");
    assert_eq!((made.chunk_bytes, made.block_size_bytes, made.policy()), (65536, 4096, v1::Policy::Bitmap));
    let kept = &server.backend.arrays()[0].volumes[0];
    assert_eq!((kept.level, kept.policy), (memory::LEVEL, memory::POLICY));

    let mut exports = ExportServiceClient::new(channel.clone());
    let good = v1::ExportSpec {
        volume: "arrays/pool/volumes/data".into(),
        nqn: "nqn.2026-01.org.example:pool".into(),
        nsid: 0,
        listen: vec!["127.0.0.1:4420".into()],
        hosts: Vec::new(),
        any_host: true,
    };
    for (spec, why) in [
        (v1::ExportSpec { nqn: "pool".into(), ..good.clone() }, "NQN_MALFORMED"),
        (v1::ExportSpec { any_host: false, ..good.clone() }, "HOSTS_MISSING"),
        (v1::ExportSpec { hosts: vec![good.nqn.clone()], ..good.clone() }, "HOSTS_AMBIGUOUS"),
        (v1::ExportSpec { hosts: vec!["x".into()], any_host: false, ..good.clone() }, "NQN_MALFORMED"),
        (v1::ExportSpec { listen: vec!["4420".into()], ..good.clone() }, "LISTEN_MALFORMED"),
        (v1::ExportSpec { listen: Vec::new(), ..good.clone() }, "LISTEN_MISSING"),
        (v1::ExportSpec { nsid: u32::MAX, ..good.clone() }, "NSID_OUT_OF_RANGE"),
        (v1::ExportSpec { volume: "arrays/pool/volumes/none".into(), ..good.clone() }, "VOLUME_NOT_FOUND"),
    ] {
        let request = v1::CreateExportRequest { request_id: String::new(), spec: Some(spec) };
        assert_eq!(reason(&exports.create_export(request).await.expect_err("refused")), why);
    }
    let request = v1::CreateExportRequest { request_id: String::new(), spec: Some(good) };
    let export = exports.create_export(request).await.expect("exported").into_inner();
    assert_eq!(export.name, "exports/nqn.2026-01.org.example:pool/namespaces/1");
    let request = v1::DeleteVolumeRequest { request_id: String::new(), name: "arrays/pool/volumes/data".into() };
    let e = volumes.delete_volume(request).await.expect_err("refused");
    assert_eq!((e.code(), reason(&e).as_str()), (Code::FailedPrecondition, "VOLUME_EXPORTED"));

    let e = FaultServiceClient::new(channel).list_faults(v1::ListFaultsRequest::default()).await.expect_err("refused");
    assert_eq!((e.code(), reason(&e).as_str()), (Code::PermissionDenied, "FAULTS_DISABLED"));
    assert!(e.message().contains("--enable-faults"), "{e}");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let server = Server::start(false);
    for n in 0..25 {
        server.backend.put_array(&format!("array{n:02}"), 2);
    }
    let mut arrays = ArrayServiceClient::new(server.connect().await);
    let (mut names, mut page_token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = v1::ListArraysRequest { page_size: 10, page_token };
        let page = arrays.list_arrays(request).await.expect("a page").into_inner();
        names.extend(page.arrays.into_iter().map(|a| a.name));
        (page_token, pages) = (page.next_page_token, pages + 1);
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!((names.len(), pages), (25, 3));
    assert!(names.is_sorted());
    let request = v1::ListArraysRequest { page_size: 10, page_token: "members:x".into() };
    assert_eq!(reason(&arrays.list_arrays(request).await.expect_err("refused")), "PAGE_TOKEN_MALFORMED");
    let mut members = MemberServiceClient::new(server.connect().await);
    let request = v1::ListMembersRequest { parent: "arrays/-".into(), page_size: 50, page_token: String::new() };
    let page = members.list_members(request).await.expect("a page").into_inner();
    assert_eq!((page.members.len(), page.next_page_token.as_str()), (50, ""), "a full last page has no next one");
    assert_eq!(page.members[3].name, "arrays/array01/members/1");
}

async fn next(stream: &mut tonic::Streaming<v1::WatchResponse>) -> Change {
    stream.message().await.expect("no error").expect("not at the end").change.expect("a change")
}

#[tokio::test]
async fn a_watch_sends_what_is_and_what_changes() {
    let server = Server::start(false);
    server.backend.put_array("pool", 2);
    server.backend.put_array("lake", 2);
    for n in 0..5 {
        server.backend.events().publish(Severity::Info, "old", "arrays/pool", &n.to_string());
    }
    let channel = server.connect().await;
    let request = v1::WatchRequest { history: 2, resources: true, array: "arrays/pool".into() };
    let mut stream = EventServiceClient::new(channel.clone()).watch(request).await.expect("a stream").into_inner();
    let mut existing = Vec::new();
    loop {
        match next(&mut stream).await {
            Change::Synced(_) => break,
            Change::Array(a) => {
                assert_eq!(a.kind(), v1::ChangeKind::Existing);
                existing.push(a.array.expect("an array").name);
            }
            Change::Member(m) => existing.push(m.member.expect("a member").name),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(existing, ["arrays/pool", "arrays/pool/members/0", "arrays/pool/members/1"]);
    for expected in ["3", "4"] {
        match next(&mut stream).await {
            Change::Event(e) => assert_eq!(e.message, expected),
            other => panic!("unexpected: {other:?}"),
        }
    }
    // Not this array: neither its event nor its change is sent.
    let mut members = MemberServiceClient::new(channel);
    for array in ["lake", "pool"] {
        let name = format!("arrays/{array}/members/1");
        members.fail_member(v1::FailMemberRequest { request_id: String::new(), name }).await.expect("failed");
    }
    let (mut event, mut array, mut member) = (false, false, false);
    while !(event && array && member) {
        match next(&mut stream).await {
            Change::Event(e) => {
                assert_eq!((e.resource.as_str(), e.severity()), ("arrays/pool/members/1", v1::Severity::Warning));
                event = true;
            }
            Change::Array(a) => {
                assert_eq!(a.kind(), v1::ChangeKind::Modified);
                let status = a.array.expect("an array").status.expect("a status");
                assert_eq!(status.state(), v1::ArrayState::Degraded);
                assert!(!status.reason.is_empty());
                array = true;
            }
            Change::Member(m) => {
                let m = m.member.expect("a member");
                assert_eq!(m.name, "arrays/pool/members/1");
                assert_eq!(m.status.expect("a status").state(), v1::MemberState::Failed);
                member = true;
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    let name = "arrays/pool/members/1".to_owned();
    members.remove_member(v1::RemoveMemberRequest { request_id: String::new(), name }).await.expect("removed");
    loop {
        if let Change::Member(m) = next(&mut stream).await {
            assert_eq!(m.kind(), v1::ChangeKind::Removed);
            break;
        }
    }
    server.stop().await;
    let end = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without a reason"),
            Err(e) => break e,
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
}

#[tokio::test]
async fn operations_are_watched_waited_for_and_cancelled() {
    let server = Server::start(false);
    server.backend.put_array("pool", 3);
    let channel = server.connect().await;
    let mut members = MemberServiceClient::new(channel.clone());
    let replace = || v1::ReplaceMemberRequest {
        request_id: String::new(),
        name: "arrays/pool/members/1".into(),
        with: "/dev/new".into(),
        ..Default::default()
    };
    let operation = members.replace_member(replace()).await.expect("started").into_inner();
    assert_eq!((operation.name.as_str(), operation.target.as_str()), ("operations/pool-1", "arrays/pool/members/1"));
    let mut operations = OperationServiceClient::new(channel);
    let name = operation.name.clone();
    let mut watch =
        operations.watch_operation(v1::WatchOperationRequest { name }).await.expect("a stream").into_inner();
    let mut done = Vec::new();
    while let Some(operation) = watch.message().await.expect("no error") {
        let status = operation.status.expect("a status");
        done.push(status.done_bytes * 100 / status.total_bytes);
        match done.last() {
            Some(0) => server.backend.advance("pool-1", 50),
            Some(50) => {
                let name = operation.name.clone();
                let timeout = Some(prost_types::Duration { seconds: 0, nanos: 1_000_000 });
                let waited = operations.wait_operation(v1::WaitOperationRequest { name, timeout }).await;
                let status = waited.expect("in time").into_inner().status.expect("a status");
                assert_eq!(status.state(), v1::OperationState::Running, "the time was over first");
                server.backend.advance("pool-1", 100);
            }
            _ => assert_eq!(status.state(), v1::OperationState::Succeeded),
        }
    }
    assert_eq!(done, [0, 50, 100], "each state once, and the end is the end of the stream");
    let request = v1::WaitOperationRequest { name: operation.name.clone(), timeout: None };
    let ended = operations.wait_operation(request).await.expect("ended long ago").into_inner();
    assert!(ended.status.expect("a status").end_time.is_some());

    server.backend.put_array("lake", 3);
    let request = v1::ReplaceMemberRequest { name: "arrays/lake/members/0".into(), ..replace() };
    let second = members.replace_member(request).await.expect("started").into_inner();
    let request = v1::PauseOperationRequest { request_id: String::new(), name: second.name.clone() };
    assert_eq!(reason(&operations.pause_operation(request).await.expect_err("refused")), "CANNOT_PAUSE");
    let request = v1::CancelOperationRequest { request_id: String::new(), name: second.name.clone() };
    let cancelled = operations.cancel_operation(request).await.expect("cancelled").into_inner();
    assert_eq!(cancelled.status.expect("a status").state(), v1::OperationState::Cancelled);
    let request = v1::GetOperationRequest { name: "operations/none".into() };
    assert_eq!(reason(&operations.get_operation(request).await.expect_err("not there")), "OPERATION_NOT_FOUND");
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let server = Server::start(false);
    let channel = server.connect().await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "raid.v1.ArrayService", "raid.v1.SystemService", "raid.v1.FaultService"] {
        let request = HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.expect("known").into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let ask = |request| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        tokio_stream::iter([request])
    };
    let mut reflection = ServerReflectionClient::new(channel);
    let request = ask(MessageRequest::ListServices(String::new()));
    let answer = reflection.server_reflection_info(request).await.expect("a stream").into_inner().message().await;
    let Some(MessageResponse::ListServicesResponse(list)) = answer.expect("no error").expect("one").message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<String> = list.service.into_iter().map(|s| s.name).collect();
    for service in ["Array", "Member", "Volume", "Export", "Operation", "Event", "Fault", "System"] {
        assert!(names.contains(&format!("raid.v1.{service}Service")), "{service} is not in {names:?}");
    }
    let request = ask(MessageRequest::FileContainingSymbol("raid.v1.Array".into()));
    let answer = reflection.server_reflection_info(request).await.expect("a stream").into_inner().message().await;
    assert!(matches!(
        answer.expect("no error").expect("one").message_response,
        Some(MessageResponse::FileDescriptorResponse(_))
    ));
}
