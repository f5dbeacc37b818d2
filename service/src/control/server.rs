//! The gRPC server on the control socket: raid.v1, health and reflection.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use raid_proto::{FILE_DESCRIPTOR_SET, v1};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use super::backend::Backend;
use super::services::Services;
use super::socket::ControlSocket;

/// How long calls that run may take to end once the daemon stops. Changes go on after that; only their callers hear no more.
const GRACE: Duration = Duration::from_secs(2);

/// Serves until `shutdown` ends, then gives calls in progress a moment, and removes the socket.
pub async fn serve<B: Backend>(
    backend: Arc<B>,
    mut socket: ControlSocket,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), String> {
    let shown = socket.path().display().to_string();
    let failed = |e: &dyn std::fmt::Display| format!("the control socket {shown} cannot be served: {e}");
    let listener = socket.take().ok_or_else(|| failed(&"it is served already"))?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(|e| failed(&e))?;
    let (stop, stopping) = watch::channel(false);
    let services = Services::new(backend, stopping.clone());
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in names::<B>() {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|e| failed(&e))?;
    let mut until = stopping;
    let server = Server::builder()
        .add_service(v1::array_service_server::ArrayServiceServer::new(services.clone()))
        .add_service(v1::member_service_server::MemberServiceServer::new(services.clone()))
        .add_service(v1::volume_service_server::VolumeServiceServer::new(services.clone()))
        .add_service(v1::export_service_server::ExportServiceServer::new(services.clone()))
        .add_service(v1::operation_service_server::OperationServiceServer::new(services.clone()))
        .add_service(v1::event_service_server::EventServiceServer::new(services.clone()))
        .add_service(v1::fault_service_server::FaultServiceServer::new(services.clone()))
        .add_service(v1::system_service_server::SystemServiceServer::new(services))
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            // An error means that the sender is gone, which is a stop too.
            let _ = until.wait_for(|stop| *stop).await;
        });
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended.map_err(|e| failed(&e)),
        () = shutdown => {}
    }
    for name in names::<B>() {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
    stop.send_replace(true);
    match tokio::time::timeout(GRACE, server).await {
        Ok(ended) => ended.map_err(|e| failed(&e)),
        // Somebody keeps a connection open; it ends with the runtime.
        Err(_) => Ok(()),
    }
}

/// The services' names, and the empty one that stands for the whole server.
fn names<B: Backend>() -> [&'static str; 9] {
    type S<B> = Services<B>;
    [
        "",
        <v1::array_service_server::ArrayServiceServer<S<B>> as NamedService>::NAME,
        <v1::member_service_server::MemberServiceServer<S<B>> as NamedService>::NAME,
        <v1::volume_service_server::VolumeServiceServer<S<B>> as NamedService>::NAME,
        <v1::export_service_server::ExportServiceServer<S<B>> as NamedService>::NAME,
        <v1::operation_service_server::OperationServiceServer<S<B>> as NamedService>::NAME,
        <v1::event_service_server::EventServiceServer<S<B>> as NamedService>::NAME,
        <v1::fault_service_server::FaultServiceServer<S<B>> as NamedService>::NAME,
        <v1::system_service_server::SystemServiceServer<S<B>> as NamedService>::NAME,
    ]
}
