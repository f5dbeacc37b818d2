//! The control plane over a real Unix socket, with a backend in memory: the services, and raidctl against them.

mod http;
mod memory;
mod raidctl;
mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memory::Memory;
use raidd::control::server;
use raidd::control::socket::ControlSocket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// A running server. Dropping it stops it.
pub(crate) struct Server {
    pub(crate) backend: Arc<Memory>,
    dir: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), String>>>,
}

impl Server {
    /// Must be called inside a runtime.
    pub(crate) fn start(faults_enabled: bool) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // Not the target directory: a socket's path has 107 bytes.
        let dir = std::env::temp_dir().join(format!("raidd-control-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a folder");
        let socket = ControlSocket::bind(&dir.join("control.sock")).expect("bound");
        let backend = Arc::new(Memory::new(faults_enabled));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server::serve(backend.clone(), socket, async move {
            let _ = stopped.await;
        }));
        Server { backend, dir, stop: Some(stop), task: Some(task) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    pub(crate) async fn connect(&self) -> Channel {
        connect(&self.socket()).await
    }

    /// An orderly stop.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.task.take().expect("running").await.expect("no panic").expect("an orderly stop");
        assert!(!self.socket().exists(), "the socket is left behind");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

async fn connect(socket: &Path) -> Channel {
    let address = format!("unix:{}", socket.display());
    Endpoint::from_shared(address).expect("an address").connect().await.expect("connected")
}
