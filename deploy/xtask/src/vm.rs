//! Jobs in a Linux guest under software emulation: the guest's own kernel is the initiator, raidd runs on this host.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.dev.raidd:guest";
const GUEST_LIMIT_SECONDS: u64 = 900;

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is where it was built")
}

pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Stops the daemon when the job ends, however it ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no free port on the loopback: {e}"))?;
    Ok(listener.local_addr().map_err(|e| e.to_string())?.port())
}

struct Host {
    raidctl: PathBuf,
    socket: PathBuf,
    members: PathBuf,
}

/// Runs `raidctl` against a control socket and gives its output; the error is what it said.
pub fn raidctl(program: &Path, socket: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--server")
        .arg(format!("unix:{}", socket.display()))
        .args(arguments)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("raidctl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

impl Host {
    fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        raidctl(&self.raidctl, &self.socket, arguments)
    }

    /// Answers one request of the guest.
    fn answer(&self, request: &str) -> Result<(), String> {
        match request {
            "fail" => self.ctl(&["member", "fail", "guest", "1"]).map(drop),
            "replace" => {
                let path = self.members.join("replacement");
                self.ctl(&["member", "replace", "guest", "1", "--with", &path.display().to_string(), "--size", "1GiB"])
                    .map(drop)
            }
            "rebuilt" => self.wait_healthy(),
            other => Err(format!("the guest asked for '{other}', which this host does not know")),
        }
    }

    fn wait_healthy(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(240);
        loop {
            match self.ctl(&["array", "show", "guest", "--check"]) {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() > deadline => return Err(format!("not healthy after 240 s: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }
}

/// Where the guest's scripts are.
pub(crate) fn scripts() -> PathBuf {
    workspace().join("deploy/vm")
}

/// Builds the guest, if need be, and the binaries. Returns the guest's folder and theirs.
pub(crate) fn prepare() -> Result<(PathBuf, PathBuf), String> {
    crate::packages::ensure(crate::packages::GUEST)?;
    let cache = target_dir().join("guest");
    run("build the guest", Command::new("bash").arg(scripts().join("build.sh")).arg(&cache))?;
    run(
        "build the binaries",
        Command::new(env!("CARGO"))
            .args(["build", "--release", "-p", "raidd", "-p", "raidctl", "--bins"])
            .current_dir(workspace()),
    )?;
    Ok((cache, target_dir().join("release")))
}

/// Builds the guest if need be, starts raidd on the loopback, and lets the guest's kernel use the volume.
pub fn initiator() -> Result<(), String> {
    let scripts = scripts();
    let (cache, bin) = prepare()?;
    let work = target_dir().join("guest-run");
    let _ = fs::remove_dir_all(&work);
    let share = work.join("share");
    let members = work.join("members");
    for dir in [&share, &members] {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let port = free_port()?;
    let socket = work.join("control.sock");
    let log = fs::File::create(work.join("raidd.log")).map_err(|e| format!("raidd.log: {e}"))?;
    let child = Command::new(bin.join("raidd"))
        .args(["serve", "--http", "none", "--state-dir"])
        .arg(work.join("state"))
        .arg("--control")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|e| e.to_string())?)
        .stderr(log)
        .spawn()
        .map_err(|e| format!("raidd cannot be started: {e}"))?;
    let _daemon = Daemon(child);
    let host = Host { raidctl: bin.join("raidctl"), socket, members };
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(e) = host.ctl(&["status"]) {
        if Instant::now() > deadline {
            return Err(format!("raidd does not answer: {e}; its log is {}", work.join("raidd.log").display()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut create = vec!["array".to_string(), "create".into(), "guest".into(), "--size".into(), "1GiB".into()];
    for i in 0..5 {
        create.extend(["--member".to_string(), host.members.join(format!("member-{i}")).display().to_string()]);
    }
    host.ctl(&create.iter().map(String::as_str).collect::<Vec<_>>())?;
    host.ctl(&["volume", "create", "guest", "data", "--level", "5", "--size", "700MiB"])?;
    let listen = format!("127.0.0.1:{port}");
    host.ctl(&["export", "create", "guest/data", "--nqn", NQN, "--listen", &listen, "--any-host"])?;

    fs::write(share.join("env"), format!("ADDR=10.0.2.2\nPORT={port}\nNQN={NQN}\n"))
        .map_err(|e| format!("env: {e}"))?;
    fs::copy(scripts.join("initiator.sh"), share.join("job.sh")).map_err(|e| format!("job.sh: {e}"))?;
    let mut guest = Command::new("bash")
        .arg(scripts.join("run.sh"))
        .args([&cache, &share])
        .arg(GUEST_LIMIT_SECONDS.to_string())
        .spawn()
        .map_err(|e| format!("the guest cannot be started: {e}"))?;
    let status = loop {
        if let Some(status) = guest.try_wait().map_err(|e| e.to_string())? {
            break status;
        }
        for request in ["fail", "replace", "rebuilt"] {
            let ask = share.join(format!("ask-{request}"));
            if ask.exists() {
                let answer = host.answer(request);
                let _ = fs::remove_file(&ask);
                let text = answer.as_ref().map_or_else(String::clone, |()| "ok".to_string());
                // Written aside and renamed, so that the guest never reads half an answer.
                let part = share.join("part");
                fs::write(&part, text)
                    .and_then(|()| fs::rename(&part, share.join(format!("done-{request}"))))
                    .map_err(|e| e.to_string())?;
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let text = fs::read_to_string(share.join("job.log")).unwrap_or_default();
    print!("{text}");
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "the guest's job failed ({status}); see job.log, dmesg.txt and console.log in {} and raidd.log beside it",
        share.display()
    ))
}

fn run(title: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{title}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{title} failed: {command:?}")) }
}
