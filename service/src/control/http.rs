//! The web side: `/metrics`, the status page at `/`, and `/healthz`. Everything is read-only.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::backend::Backend;
use super::{metrics, page};

/// Opens the listener, so that a port in use is known before anything else starts.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|e| {
        format!("the status page cannot listen on {address}: {e}; choose another address with --http, or 'none'")
    })
}

/// Serves until `shutdown` ends.
pub async fn serve<B: Backend>(
    backend: Arc<B>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    let server = axum::serve(listener, router(backend)).into_future();
    tokio::select! {
        ended = server => ended.map_err(|e| format!("the status page cannot be served: {e}")),
        // Nothing is lost with a page that is half sent.
        () = shutdown => Ok(()),
    }
}

/// The routes.
pub fn router<B: Backend>(backend: Arc<B>) -> Router {
    Router::new()
        .route("/", get(status::<B>))
        .route("/metrics", get(scrape::<B>))
        .route("/healthz", get(health))
        .fallback(nothing)
        .with_state(backend)
}

async fn health() -> &'static str {
    "ok\n"
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing here: / is the status page, /metrics has the metrics, /healthz says ok\n")
}

async fn scrape<B: Backend>(State(backend): State<Arc<B>>) -> Response {
    match metrics::render(&*backend) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(e) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics could not be written: {e}\n")).into_response()
        }
    }
}

async fn status<B: Backend>(State(backend): State<Arc<B>>) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page::render(&*backend)).into_response()
}
