//! raidd on the host, over drives with simulated volatile caches: started, killed, started again.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the daemon may take to start, assemble, and export.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a daemon is started with.
pub struct Daemon {
    pub raidd: PathBuf,
    pub raidctl: PathBuf,
    /// State, control socket, members and log are below this.
    pub work: PathBuf,
    pub listen: SocketAddr,
    child: Option<Child>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Daemon {
    pub fn new(bin: &std::path::Path, work: PathBuf, listen: SocketAddr) -> Daemon {
        Daemon { raidd: bin.join("raidd"), raidctl: bin.join("raidctl"), work, listen, child: None }
    }

    /// Starts it and waits until it answers. With `lies` its drives answer flushes without doing them.
    pub fn start(&mut self, seed: u64, lies: bool) -> Result<(), String> {
        self.spawn(seed, lies)?;
        self.wait("raidd does not answer", |d| d.ctl(&["status"]).map(drop))
    }

    /// Starts it.
    pub fn spawn(&mut self, seed: u64, lies: bool) -> Result<(), String> {
        let path = self.work.join("raidd.log");
        let log =
            fs::OpenOptions::new().create(true).append(true).open(&path).map_err(|e| format!("raidd.log: {e}"))?;
        let mut command = Command::new(&self.raidd);
        command.args([
            "serve",
            "--http",
            "none",
            "--reactors",
            "2",
            "--assembly-wait",
            "1",
            "--enable-faults",
            "--volatile-cache",
        ]);
        command.arg(seed.to_string()).arg("--state-dir").arg(self.work.join("state"));
        command.arg("--control").arg(self.socket());
        if lies {
            command.arg("--volatile-cache-lies");
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log);
        self.child = Some(command.spawn().map_err(|e| format!("{}: {e}", self.raidd.display()))?);
        Ok(())
    }

    /// Waits until a volume is served, which is what a host waits for.
    pub fn wait_exported(&mut self) -> Result<(), String> {
        self.wait("raidd does not export its volumes again", |d| {
            TcpStream::connect_timeout(&d.listen, Duration::from_secs(1)).map(drop).map_err(|e| e.to_string())
        })
    }

    /// Waits for a state of it.
    pub fn wait(&mut self, what: &str, ready: impl Fn(&Daemon) -> Result<(), String>) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Err(e) = ready(self) else { return Ok(()) };
            let ended = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.work.join("raidd.log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(8).collect();
                let last = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
                let ended = ended.map(|s| format!(", it has ended ({s})")).unwrap_or_default();
                return Err(format!("{what}{ended}: {e}; the end of its log:\n  {last}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn socket(&self) -> PathBuf {
        self.work.join("control.sock")
    }

    pub fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        crate::vm::raidctl(&self.raidctl, &self.socket(), arguments)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a process that is gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// An orderly end.
    pub fn stop(&mut self) -> Result<(), String> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let _ = Command::new("kill").arg(child.id().to_string()).status();
        let status = child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("raidd did not stop in order: {status}")) }
    }
}
