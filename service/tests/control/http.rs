//! The metrics and the page over a real connection.

use std::sync::Arc;

use raidd::control::backend::Backend;
use raidd::control::http;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::memory::Memory;

async fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("received");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

async fn serve() -> (Arc<Memory>, std::net::SocketAddr) {
    let backend = Arc::new(Memory::new(false));
    backend.put_array("pool", 3);
    backend.put_array("<b>", 2);
    backend.fail_member("pool", 1).await.expect("failed");
    let listener = http::bind("127.0.0.1:0".parse().expect("an address")).await.expect("bound");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(http::serve(backend.clone(), listener, std::future::pending()));
    (backend, address)
}

#[tokio::test]
async fn metrics_follow_the_rules_of_the_format() {
    let (_backend, address) = serve().await;
    let (head, body) = get(address, "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    for line in [
        "raidd_array_state{array=\"pool\",state=\"degraded\"} 1",
        "raidd_array_state{array=\"pool\",state=\"healthy\"} 0",
        "raidd_member_state{array=\"pool\",member=\"1\",state=\"failed\"} 1",
        "raidd_member_errors_total{array=\"pool\",member=\"0\",op=\"read\"} 3.0",
        "raidd_volume_operation_bytes_total{array=\"pool\",volume=\"data\",op=\"read\"} 40960.0",
        "raidd_volume_operation_seconds_total{array=\"pool\",volume=\"data\",op=\"read\"} 2.5",
        "raidd_volume_operation_latency_seconds_bucket{le=\"0.00005\",array=\"pool\",volume=\"data\",op=\"read\"} 0",
        "raidd_volume_operation_latency_seconds_bucket{le=\"0.0001\",array=\"pool\",volume=\"data\",op=\"read\"} 7",
        "raidd_volume_operation_latency_seconds_bucket{le=\"0.5\",array=\"pool\",volume=\"data\",op=\"read\"} 7",
        "raidd_volume_operation_latency_seconds_bucket{le=\"1.0\",array=\"pool\",volume=\"data\",op=\"read\"} 10",
        "raidd_volume_operation_latency_seconds_bucket{le=\"+Inf\",array=\"pool\",volume=\"data\",op=\"read\"} 10",
        "raidd_volume_operation_latency_seconds_sum{array=\"pool\",volume=\"data\",op=\"read\"} 2.5",
        "raidd_volume_operation_latency_seconds_count{array=\"pool\",volume=\"data\",op=\"read\"} 10",
        "raidd_member_operation_latency_seconds_count{array=\"pool\",member=\"0\",op=\"flush\"} 0",
        "raidd_member_operation_errors_total{array=\"pool\",member=\"0\",op=\"read\"} 1.0",
        "raidd_array_stripe_writes_total{array=\"pool\",path=\"full-stripe\"} 7.0",
        "raidd_reactor_busy_seconds_total{reactor=\"0\"} 1.5",
        "raidd_resident_memory_bytes 104857600",
    ] {
        assert!(body.lines().any(|l| l == line), "{line} is not in\n{body}");
    }
    assert!(body.ends_with("# EOF\n"));
    let mut family = ("", "");
    let mut families = Vec::new();
    for line in body.lines().filter(|l| *l != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split_once(' ').expect("a name and a type");
            assert!(!families.contains(&family.0), "family {} comes twice", family.0);
            families.push(family.0);
            let help = format!("# HELP {} ", family.0);
            assert!(body.contains(&help), "{} has no help", family.0);
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("a name");
            let suffixes: &[&str] = match family.1 {
                "counter" => &["_total"],
                "histogram" => &["_sum", "_count", "_bucket"],
                _ => &[""],
            };
            let right = name.strip_prefix(family.0).is_some_and(|suffix| suffixes.contains(&suffix));
            assert!(right, "a {} of another name: {line}", family.1);
        }
    }
    assert!(families.len() > 30, "{families:?}");
}

#[tokio::test]
async fn the_page_shows_the_state_and_trusts_nobody() {
    let (_backend, address) = serve().await;
    let (head, body) = get(address, "/").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html; charset=utf-8"), "{head}");
    assert!(head.contains("default-src 'none'"), "{head}");
    for part in [
        "<html lang=\"en\">",
        "<caption>Members</caption>",
        "scope=\"col\"",
        "degraded",
        "member 1 is failed; replace it",
    ] {
        assert!(body.contains(part), "{part} is not in\n{body}");
    }
    assert!(body.contains("Array &lt;b&gt;") && !body.contains("Array <b>"), "{body}");
    assert!(!body.contains("<script"), "{body}");
    let (head, body) = get(address, "/healthz").await;
    assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n", "{head} {body}");
    assert!(get(address, "/nothing").await.0.starts_with("HTTP/1.1 404"));
    assert!(http::bind(address).await.expect_err("in use").contains("--http"));
}
