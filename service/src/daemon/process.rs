//! The process: what starts in which order, and what ends in which.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::backend::Control;
use super::cli::{Common, Serve};
use super::machine::Daemon;
use super::state::StateDir;
use crate::control::{http, server, socket::ControlSocket};

/// A running process: reactors, control socket, page.
pub struct Process {
    /// The daemon.
    pub daemon: Arc<Daemon>,
    /// Where the page is; `None` if it is off.
    pub http: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    tasks: Vec<tokio::task::JoinHandle<Result<(), String>>>,
}

/// The control plane's runtime: small, and off the reactors' cores as far as the kernel can see.
pub fn runtime() -> Result<Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(8)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(|e| format!("the control plane's threads cannot be started: {e}"))
}

/// Log lines to standard error; `RAIDD_LOG` sets the level, as `info` or `raidd=debug`.
pub fn log(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RAIDD_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    // A second call (in tests) keeps the first log.
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = log.with_target(false).with_ansi(colours).try_init();
}

/// The page's address, from the option.
fn http_address(option: &str) -> Result<Option<SocketAddr>, String> {
    if option == "none" {
        return Ok(None);
    }
    option.parse().map(Some).map_err(|_| format!("--http {option}: give ADDR:PORT, such as 127.0.0.1:9420, or 'none'"))
}

impl Process {
    /// Opens what may be in use first, so that a refusal has started nothing; then the reactors; then the control plane.
    pub async fn start(common: Common, state_dir: &Path, control: &Path) -> Result<Process, String> {
        let address = http_address(&common.http)?;
        let state = StateDir::open(state_dir)?;
        let socket = ControlSocket::bind(control)?;
        let page = match address {
            Some(address) => Some(http::bind(address).await?),
            None => None,
        };
        let http = page.as_ref().and_then(|p| p.local_addr().ok());
        let daemon = Daemon::start(common, state)?;
        if let Some(http) = http {
            daemon.set_http(http);
        }
        let backend = Arc::new(Control(daemon.clone()));
        let (stop, stopping) = watch::channel(false);
        let stopped = |mut stopping: watch::Receiver<bool>| async move {
            // The sender's end is a stop too.
            let _ = stopping.wait_for(|s| *s).await;
        };
        let mut tasks = vec![tokio::spawn(server::serve(backend.clone(), socket, stopped(stopping.clone())))];
        if let Some(page) = page {
            tasks.push(tokio::spawn(http::serve(backend, page, stopped(stopping))));
        }
        Ok(Process { daemon, http, stop, tasks })
    }

    /// Waits for Ctrl-C or SIGTERM.
    pub async fn wait(&self) -> Result<(), String> {
        let mut terminate =
            signal(SignalKind::terminate()).map_err(|e| format!("signals cannot be waited for: {e}"))?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result.map_err(|e| format!("Ctrl-C cannot be waited for: {e}")),
            _ = terminate.recv() => Ok(()),
        }
    }

    /// Ends everything in order: no new commands, hosts let go, arrays clean, reactors stopped.
    pub async fn end(self) -> Result<(), String> {
        self.stop.send_replace(true);
        for task in self.tasks {
            match task.await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::warn!("{e}"),
                Err(e) => tracing::warn!("a part of the control plane ended badly: {e}"),
            }
        }
        self.daemon.shut_down().await
    }
}

/// `raidd serve`.
pub fn serve(options: Serve) -> Result<(), String> {
    log("info");
    let control = options.control.clone().unwrap_or_else(|| options.state_dir.join("control.sock"));
    runtime()?.block_on(async {
        std::fs::create_dir_all(&options.state_dir)
            .map_err(|e| format!("the state directory {} cannot be created: {e}", options.state_dir.display()))?;
        let process = Process::start(options.common, &options.state_dir, &control).await?;
        tracing::info!("control socket: {}", control.display());
        if let Some(http) = process.http {
            tracing::info!("page: http://{http}/");
        }
        let assembling = tokio::spawn({
            let daemon = process.daemon.clone();
            async move { daemon.assemble_known().await }
        });
        process.wait().await?;
        tracing::info!("stopping");
        assembling.abort();
        process.end().await
    })
}

/// A path for messages: relative to where the user is, if it is below.
pub fn shown(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).map_or_else(|_| path.to_path_buf(), |p| Path::new(".").join(p))
}
