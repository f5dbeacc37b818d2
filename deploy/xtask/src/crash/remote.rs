//! The guest as the host sees it: a console that runs scripts, and the load's stream of promises.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ledger::Ledger;

/// A script may take this long; software emulation is slow, and a hung file system hangs for ever.
const SCRIPT_LIMIT: Duration = Duration::from_secs(300);
/// From the start of QEMU to the first connection.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// What the load has told so far.
#[derive(Default)]
struct Told {
    ledger: Ledger,
    /// The load's connection has ended.
    ended: bool,
    /// It sent what it must not send.
    nonsense: Option<String>,
    /// No promise counts from now on.
    closed: bool,
}

#[derive(Default)]
struct Shared {
    told: Mutex<Told>,
    news: Condvar,
}

/// The ledger, locked.
pub struct LedgerGuard<'a>(MutexGuard<'a, Told>);

impl std::ops::Deref for LedgerGuard<'_> {
    type Target = Ledger;
    fn deref(&self) -> &Ledger {
        &self.0.ledger
    }
}

impl std::ops::DerefMut for LedgerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Ledger {
        &mut self.0.ledger
    }
}

/// A running guest. It powers off when this is dropped.
pub struct Guest {
    qemu: Child,
    share: PathBuf,
    listener: TcpListener,
    agent: Option<BufReader<TcpStream>>,
    shared: Arc<Shared>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The agent ends with its connection, the job with the agent, and the machine with the job.
        self.agent = None;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.qemu.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // run.sh's `timeout` hands the signal on.
        let _ = Command::new("pkill").args(["-TERM", "-P", &self.qemu.id().to_string()]).status();
        let _ = self.qemu.wait();
    }
}

impl Guest {
    /// Boots the guest of `cache` and waits for its agent.
    pub fn boot(cache: &Path, share: &Path, limit_seconds: u64) -> Result<Guest, String> {
        let scripts = crate::vm::scripts();
        super::copy_self(&share.join("bin"))?;
        fs::copy(scripts.join("crash.sh"), share.join("crash.sh")).map_err(|e| format!("crash.sh: {e}"))?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no free port on the loopback: {e}"))?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        let job = format!(
            "mkdir -p /tmp/bin && cp /share/bin/* /tmp/bin/ && cd /\n\
             export HOST=10.0.2.2:{port} XTASK='/tmp/bin/loader --library-path /tmp/bin /tmp/bin/xtask'\n\
             exec $XTASK guest agent $HOST\n"
        );
        fs::write(share.join("job.sh"), job).map_err(|e| format!("job.sh: {e}"))?;
        let qemu = Command::new("bash")
            .arg(scripts.join("run.sh"))
            .args([cache, share])
            .arg(limit_seconds.to_string())
            .spawn()
            .map_err(|e| format!("the guest cannot be started: {e}"))?;
        let share = share.to_path_buf();
        let mut guest = Guest { qemu, share, listener, agent: None, shared: Arc::default() };
        let agent = guest.accept("agent", BOOT_LIMIT)?;
        agent.get_ref().set_read_timeout(Some(SCRIPT_LIMIT)).map_err(|e| e.to_string())?;
        guest.agent = Some(agent);
        Ok(guest)
    }

    /// Waits for a connection that says who it is.
    fn accept(&mut self, who: &str, limit: Duration) -> Result<BufReader<TcpStream>, String> {
        let fail = |e: std::io::Error| format!("the guest's {who}: {e}");
        self.listener.set_nonblocking(true).map_err(fail)?;
        let deadline = Instant::now() + limit;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(fail)?;
                    stream.set_nodelay(true).map_err(fail)?;
                    let mut reader = BufReader::new(stream);
                    let mut line = String::new();
                    reader.read_line(&mut line).map_err(fail)?;
                    return if line.trim() == who { Ok(reader) } else { Err(format!("the guest said '{line}'")) };
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(fail(e)),
            }
            if let Ok(Some(status)) = self.qemu.try_wait() {
                let log = fs::read_to_string(self.share.join("job.log")).unwrap_or_default();
                return Err(format!("the guest ended ({status}) before its {who} came: {log}"));
            }
            if Instant::now() > deadline {
                return Err(format!("the guest's {who} did not come within {} s", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a script as root and returns its output; an exit code that is not 0 is an error with the output in it.
    pub fn run(&mut self, what: &str, script: &str) -> Result<String, String> {
        let fail = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::WouldBlock => format!("{what}: no answer within {} s", SCRIPT_LIMIT.as_secs()),
            _ => format!("{what}: the guest's agent: {e}"),
        };
        let agent = self.agent.as_mut().ok_or("the guest has no agent")?;
        let message = format!("run {}\n{script}", script.len());
        agent.get_mut().write_all(message.as_bytes()).map_err(fail)?;
        let mut line = String::new();
        agent.read_line(&mut line).map_err(fail)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["done", code, len] = words.as_slice() else { return Err(format!("{what}: the guest has ended")) };
        let mut output = vec![0; len.parse().unwrap_or(0)];
        agent.read_exact(&mut output).map_err(fail)?;
        let output = String::from_utf8_lossy(&output).into_owned();
        if *code == "0" { Ok(output) } else { Err(format!("{what}: exit code {code}:\n{}", output.trim())) }
    }

    /// Puts a file into the share.
    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.share.join(name), text).map_err(|e| format!("{name}: {e}"))
    }

    /// What was promised.
    pub fn ledger(&self) -> LedgerGuard<'_> {
        LedgerGuard(self.shared.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts the load with a script that returns at once, and takes down what it tells until it ends.
    pub fn load(&mut self, script: &str) -> Result<Load, String> {
        self.run("start the load", script)?;
        let stream = self.accept("load", Duration::from_secs(30))?;
        {
            let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
            (told.ended, told.closed) = (false, false);
            told.ledger.errors.clear();
        }
        let shared = self.shared.clone();
        let begin = Instant::now();
        let path = self.share.join("promises.log");
        let log =
            fs::OpenOptions::new().create(true).append(true).open(&path).map_err(|e| format!("promises.log: {e}"))?;
        let mut log = std::io::BufWriter::new(log);
        std::thread::spawn(move || {
            for line in stream.lines().map_while(Result::ok) {
                let mut told = shared.told.lock().unwrap_or_else(PoisonError::into_inner);
                // For whoever looks into a failure; the test does not depend on it.
                let late = if told.closed { "after the kill: " } else { "" };
                let _ = writeln!(log, "{:.6} {late}{line}", begin.elapsed().as_secs_f64());
                if told.closed && line.starts_with("kept ") {
                    continue;
                }
                if let Err(e) = told.ledger.line(&line) {
                    told.nonsense = Some(e);
                }
                shared.news.notify_all();
            }
            shared.told.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            shared.news.notify_all();
        });
        Ok(Load(self.shared.clone()))
    }
}

/// A running load.
pub struct Load(Arc<Shared>);

impl Load {
    fn wait(
        &self,
        limit: Duration,
        what: &str,
        mut done: impl FnMut(&Told) -> bool,
    ) -> Result<MutexGuard<'_, Told>, String> {
        let told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let until = |told: &mut Told| !done(told) && told.nonsense.is_none();
        let (told, time) = self.0.news.wait_timeout_while(told, limit, until).unwrap_or_else(PoisonError::into_inner);
        if let Some(nonsense) = &told.nonsense {
            return Err(nonsense.clone());
        }
        if time.timed_out() {
            let so_far = format!("{} promises so far, errors: {:?}", told.ledger.promises, told.ledger.errors);
            return Err(format!("{what} within {} s; {so_far}", limit.as_secs()));
        }
        Ok(told)
    }

    /// Waits for the n-th promise. The load must not end before.
    pub fn wait_promises(&self, n: u64, limit: Duration) -> Result<(), String> {
        let told = self.wait(limit, &format!("the load did not come to promise {n}"), |t| {
            t.ended || !t.ledger.errors.is_empty() || t.ledger.promises >= n
        })?;
        if told.ledger.promises >= n && told.ledger.errors.is_empty() {
            return Ok(());
        }
        Err(format!("the load failed while raidd was running: {:?}", told.ledger.errors))
    }

    /// Closes the ledger: called just before the kill. A sync that ends while its target is gone proves nothing. Usually it
    /// is an error, but file systems that are being shut down have been seen to answer success.
    pub fn close(&self) -> Result<(), String> {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.closed = true;
        if told.ledger.errors.is_empty() {
            return Ok(());
        }
        Err(format!("the load failed while raidd was running: {:?}", told.ledger.errors))
    }

    /// Waits until every writer has ended.
    pub fn wait_end(&self, limit: Duration) -> Result<(), String> {
        self.wait(limit, "not every writer has seen its file system fail", |t| t.ended).map(drop)
    }
}
