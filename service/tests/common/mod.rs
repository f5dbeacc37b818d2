//! The real binaries in a temporary directory.
#![allow(dead_code)] // each test binary uses its own part

pub mod array;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory that is gone when the test ends, unless it failed.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder for the test");
        TempDir(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// The control program, built beside the daemon.
pub fn raidctl_path() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_raidd")).with_file_name("raidctl");
    assert!(path.exists(), "{} is missing: run 'cargo build --workspace --bins' first", path.display());
    path
}

/// A running daemon. Killed when dropped.
pub struct Daemon {
    child: Option<Child>,
    pub socket: PathBuf,
    pub state: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// `raidd serve` with its state in `dir`, ready for commands.
    pub fn serve(dir: &TempDir, extra: &[&str]) -> Daemon {
        let mut daemon = Daemon::try_serve(dir, extra);
        daemon.wait_ready();
        daemon
    }

    /// The same with a page on a port that the system picks.
    pub fn serve_with_page(dir: &TempDir) -> Daemon {
        let mut daemon = Daemon::spawn(dir, "127.0.0.1:0", &[]);
        daemon.wait_ready();
        daemon
    }

    /// `raidd serve`, started and not waited for.
    pub fn try_serve(dir: &TempDir, extra: &[&str]) -> Daemon {
        Daemon::spawn(dir, "none", extra)
    }

    fn spawn(dir: &TempDir, http: &str, extra: &[&str]) -> Daemon {
        let state = dir.path("state");
        let log = dir.path("raidd.log");
        let out = fs::OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_raidd"))
            .args(["serve", "--http", http, "--reactors", "2", "--buffer-mib", "32", "--state-dir"])
            .arg(&state)
            .args(if extra.contains(&"--assembly-wait") { &[][..] } else { &["--assembly-wait", "1"] })
            .args(extra)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out)
            .spawn()
            .expect("raidd starts");
        Daemon { child: Some(child), socket: state.join("control.sock"), state, log }
    }

    fn wait_ready(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.run(&["status"]).status.success() {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().expect("a child")) {
                panic!("raidd ended with {status}: {}", self.log());
            }
            assert!(Instant::now() < deadline, "raidd is not ready after 30 s: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What it printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// `raidctl`, whatever comes of it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(raidctl_path())
            .arg("--server")
            .arg(format!("unix:{}", self.socket.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("raidctl runs")
    }

    /// `raidctl` that must succeed; its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "raidctl {arguments:?} failed: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `raidctl` that must be refused with this exit code, and with a message that holds every one of the texts: what
    /// happened, to what, and what to do.
    pub fn refused(&self, arguments: &[&str], code: i32, texts: &[&str]) {
        let output = self.run(arguments);
        let (out, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "raidctl {arguments:?}: {out}{message}");
        for text in texts {
            assert!(message.contains(text), "raidctl {arguments:?}: no '{text}' in: {message}");
        }
        assert!(!message.contains("panicked"), "{message}");
    }

    /// Waits until `array show --check` finds the array healthy.
    pub fn wait_healthy(&self, array: &str) {
        self.wait_for("a healthy array", || self.run(&["array", "show", array, "--check"]).status.success());
    }

    pub fn wait_for(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ready() {
            assert!(
                Instant::now() < deadline,
                "no {what} after 60 s: {}\n{}",
                String::from_utf8_lossy(&self.run(&["status"]).stdout),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the process has ended by itself, well or not.
    pub fn wait_end(&mut self, well: bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().expect("a child")) {
                assert_eq!(status.success(), well, "raidd ended with {status}: {}", self.log());
                self.child = None;
                return;
            }
            assert!(Instant::now() < deadline, "raidd goes on: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL: what a crash is to the process.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    /// SIGTERM, and it must end well.
    pub fn stop(mut self) {
        let mut child = self.child.take().expect("running");
        Command::new("kill").arg(child.id().to_string()).status().expect("kill runs");
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                assert!(status.success(), "raidd ended with {status}: {}", self.log());
                return;
            }
            assert!(Instant::now() < deadline, "raidd does not stop: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
