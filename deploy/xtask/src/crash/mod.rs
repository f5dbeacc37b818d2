//! `cargo xtask crash`: the whole daemon, killed in the middle of a real host's writes.
//!
//! raidd serves three volumes over members with simulated volatile caches (`raidd --volatile-cache`), so that `kill -9` loses
//! and tears what is not flushed, as a cut of the power would. A guest's kernel has ext4, xfs and btrfs on them and databases
//! in two; its load tells this host what each completed sync has promised. At a seeded promise raidd is killed. A host that
//! lived on with what it believes to be written would be wrong about it (as with any target whose drives lose power), so
//! the guest's file systems fail, are unmounted, and begin again from what is on the volumes: log replay, a full check,
//! and then every promise, byte for byte.

mod content;
mod daemon;
pub mod guest;
mod ledger;
mod remote;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};

use content::Rng;
use daemon::Daemon;
use ledger::Checked;
use remote::{Guest, Load};

const NQN: &str = "nqn.2026-11.dev.raidd:crash";
const MEMBERS: usize = 5;
/// File systems, in the order of their namespaces.
const SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];
/// The guest's time limit: a boot, and what a kill takes at most.
const BOOT_SECONDS: u64 = 240;
const KILL_SECONDS: u64 = 600;

/// Options of `cargo xtask crash`.
#[derive(Args, Debug)]
pub struct Options {
    /// How often raidd is killed
    #[arg(long, default_value_t = 3)]
    kills: u32,
    /// Decides levels, load, moments, and what the caches lose [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Consistency policies of the volumes, in turn, as raidctl names them
    #[arg(long, value_delimiter = ',', default_value = "bitmap,resync", value_name = "LIST")]
    policy: Vec<String>,
    /// Levels of the volumes, in turn [default: 5, 6 and 10 in an order that the seed decides]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    level: Vec<String>,
    /// With each kill a member is lost, and is replaced after the check. For volumes that survive that: mirrors, and levels
    /// with parity that have a journal
    #[arg(long)]
    lose_member: bool,
    /// After the last kill, go on over drives that answer flushes and do not do them: the checks must find what that loses
    #[arg(long)]
    control: bool,
    /// Break something on purpose, from the first kill on: the run must fail
    #[arg(long, value_enum, value_name = "NAME")]
    r#break: Option<Break>,
}

impl Options {
    /// What the full test runs.
    pub fn in_tests() -> Options {
        let policy = ["bitmap", "resync"].map(String::from).to_vec();
        let (level, lose_member) = (Vec::new(), false);
        Options { kills: 3, seed: Some(1), policy, level, lose_member, control: true, r#break: None }
    }

    /// The command that repeats a run.
    fn command(&self, seed: u64) -> String {
        let mut out =
            format!("cargo xtask crash --kills {} --seed {seed} --policy {}", self.kills, self.policy.join(","));
        if !self.level.is_empty() {
            out += &format!(" --level {}", self.level.join(","));
        }
        let flags = [
            (self.lose_member, " --lose-member"),
            (self.control, " --control"),
            (self.r#break.is_some(), " --break ignored-flush"),
        ];
        flags.iter().filter(|(on, _)| *on).for_each(|(_, flag)| out += flag);
        out
    }
}

/// Deliberate faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Break {
    /// Drives answer flushes and do not do them
    IgnoredFlush,
}

/// Runs the test. The error names what was broken, the seed, and the command that repeats it.
pub fn run(options: &Options) -> Result<(), String> {
    let clock =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64 % 1_000_000);
    let seed = options.seed.unwrap_or_else(clock);
    let begin = Instant::now();
    let result = Crash::new(seed, options).and_then(|mut crash| crash.play(options));
    result.map_err(|e| {
        format!(
            "crash test failed with seed {seed}: {e}\n\
             logs, console and members are in {}\n\
             repeat it with: {}",
            work().display(),
            options.command(seed)
        )
    })?;
    println!("crash: all held over {} kills, seed {seed}, {:.0} s", options.kills, begin.elapsed().as_secs_f64());
    Ok(())
}

fn work() -> PathBuf {
    crate::vm::target_dir().join("crash-run")
}

struct Crash {
    seed: u64,
    rng: Rng,
    daemon: Daemon,
    guest: Guest,
    members: Vec<PathBuf>,
    lose_member: bool,
    /// Rounds of load so far.
    round: u32,
}

impl Crash {
    /// Builds, makes the array and its volumes, boots the guest, and makes the file systems.
    fn new(seed: u64, options: &Options) -> Result<Crash, String> {
        let (cache, bin) = crate::vm::prepare()?;
        let work = work();
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(work.join("members")).map_err(|e| format!("{}: {e}", work.display()))?;
        let mut rng = Rng::new(seed);
        let port = crate::vm::free_port()?;
        let mut daemon = Daemon::new(&bin, work.clone(), ([127, 0, 0, 1], port).into());
        daemon.start(rng.next() >> 32, false)?;
        let mut create = vec!["array".to_string(), "create".into(), "crash".into(), "--size".into(), "1GiB".into()];
        let members: Vec<PathBuf> = (0..MEMBERS).map(|i| work.join(format!("members/{i}"))).collect();
        for member in &members {
            create.extend(["--member".to_string(), member.display().to_string()]);
        }
        daemon.ctl(&create.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut levels = ["5", "6", "10"];
        levels.rotate_left(rng.between(0, 2) as usize);
        if !options.level.is_empty() {
            levels = std::array::from_fn(|i| options.level[i % options.level.len()].as_str());
        }
        let policies: Vec<&str> = options.policy.iter().map(String::as_str).cycle().take(SYSTEMS.len()).collect();
        let listen = daemon.listen.to_string();
        for ((system, level), policy) in SYSTEMS.iter().zip(levels).zip(&policies) {
            let sizes = ["--level", level, "--size", "400MiB", "--policy", policy];
            daemon.ctl(&[&["volume", "create", "crash", system][..], &sizes].concat())?;
            let volume = format!("crash/{system}");
            daemon.ctl(&["export", "create", &volume, "--nqn", NQN, "--listen", &listen, "--any-host"])?;
        }
        let limit = BOOT_SECONDS + KILL_SECONDS * u64::from(options.kills + u32::from(options.control));
        let mut guest = Guest::boot(&cache, &work.join("share"), limit)?;
        let volumes = SYSTEMS.iter().zip(levels).zip(policies).map(|((s, l), p)| format!("{s} on RAID-{l} ({p})"));
        println!("crash: seed {seed}, {}; the guest is up", volumes.collect::<Vec<_>>().join(", "));
        guest.run("make the file systems", &script(&format!("connect {port}\nmake")))?;
        Ok(Crash { seed, rng, daemon, guest, members, lose_member: options.lose_member, round: 0 })
    }

    fn play(&mut self, options: &Options) -> Result<(), String> {
        for kill in 1..=options.kills {
            let begin = Instant::now();
            let failed = |e| format!("kill {kill}: {e}");
            let killed = self.kill(options.r#break.is_some()).map_err(failed)?;
            let kept = self.recover().map_err(failed)?;
            println!("kill {kill}/{}: {killed}; {kept}; {:.0} s", options.kills, begin.elapsed().as_secs_f64());
        }
        if options.control {
            self.kill(true).map_err(|e| format!("the control: {e}"))?;
            let Err(found) = self.recover() else {
                return Err("the control: drives that ignore flushes were not found out".to_string());
            };
            println!("control: drives that ignore flushes were found out, as they must be: {}", first_lines(&found, 3));
        }
        Ok(())
    }

    /// The first half of a round: load, and the kill in the middle of it. With `lies` the drives ignore flushes meanwhile.
    fn kill(&mut self, lies: bool) -> Result<String, String> {
        if lies {
            self.daemon.stop()?;
            self.daemon.start(self.rng.next() >> 32, true)?;
            self.daemon.wait_exported()?;
            self.guest.run("wait for the volumes", &script("live"))?;
        }
        self.round += 1;
        let round = self.round;
        if round > 2 {
            let old = round - 2;
            SYSTEMS.iter().for_each(|s| self.guest.ledger().forget(&format!("/mnt/{s}/{old}/")));
        }
        self.guest.run("mount", &script(&format!("mount_all\nbegin {round}")))?;
        let before = self.guest.ledger().promises;
        let load = self.guest.load(&load_script(self.seed.wrapping_mul(1000) + u64::from(round), self.seed, round))?;
        let wanted = before + self.rng.between(PROMISES.0, PROMISES.1);
        load.wait_promises(wanted, Duration::from_secs(240))?;
        std::thread::sleep(Duration::from_micros(self.rng.between(0, 30_000)));
        load.close()?;
        self.daemon.kill();
        let promises = self.guest.ledger().promises - before;
        let under_way = self.guest.ledger().under_way();
        if under_way == 0 {
            return Err("nothing was being written at the moment of the kill: nothing was tested".to_string());
        }
        self.end_load(load)?;
        Ok(format!("after {promises} promises, {under_way} writes under way"))
    }

    /// The second half: restart, reconnect, and every check. Its error is what was broken.
    fn recover(&mut self) -> Result<String, String> {
        let lost = if self.lose_member { Some(self.lose()?) } else { None };
        // Recovery may be cut as well, at any moment of it. The guest is disconnected meanwhile: a kernel whose target goes
        // away while it connects notices only after a minute. Without cuts its own reconnect loop finds the target.
        let cuts = self.rng.between(0, 2);
        let mut back =
            "live; disks | diff /tmp/disks - || fail 'the kernel lost namespaces while it reconnected'".to_string();
        if cuts > 0 {
            self.guest.run("disconnect", &script("nvme disconnect -n $NQN"))?;
            back = format!("connect {}", self.daemon.listen.port());
        }
        for _ in 0..cuts {
            self.daemon.spawn(self.rng.next() >> 32, false)?;
            std::thread::sleep(Duration::from_millis(self.rng.between(1, 1500)));
            self.daemon.kill();
        }
        self.daemon.start(self.rng.next() >> 32, false)?;
        self.daemon.wait_exported()?;
        self.guest.run("wait for the volumes", &script(&back))?;
        self.guest.run("mount after the crash", &script("mount_all\numount_all"))?;
        self.guest.run("check the file systems", &script("fsck_all"))?;
        self.guest.run("mount again", &script("mount_all"))?;
        let promised = self.guest.ledger().promised();
        let checked = self.verify()?;
        self.guest.run("unmount", &script("umount_all"))?;
        if let Some(lost) = lost {
            self.replace(lost)?;
        }
        Ok(report(cuts, promised, &checked))
    }

    /// A member is gone while raidd is not running.
    fn lose(&mut self) -> Result<usize, String> {
        let lost = self.rng.between(0, self.members.len() as u64 - 1) as usize;
        fs::remove_file(&self.members[lost]).map_err(|e| format!("{}: {e}", self.members[lost].display()))?;
        Ok(lost)
    }

    /// A new drive in the place of the lost one.
    fn replace(&mut self, lost: usize) -> Result<(), String> {
        let fresh = self.daemon.work.join(format!("members/{lost}.{}", self.round));
        let old = self.members[lost].display().to_string();
        let with = fresh.display().to_string();
        self.daemon.ctl(&["member", "replace", "crash", &old, "--with", &with, "--size", "1GiB", "--wait"])?;
        self.daemon
            .wait("the array is not healthy again", |d| d.ctl(&["array", "show", "crash", "--check"]).map(drop))?;
        self.members[lost] = fresh;
        Ok(())
    }

    /// Every writer has met an error, and nothing is mounted any more: what the guest believes is forgotten.
    fn end_load(&mut self, load: Load) -> Result<(), String> {
        load.wait_end(Duration::from_secs(60))?;
        self.guest.run("give the file systems up", &script("abandon"))?;
        Ok(())
    }

    fn verify(&mut self) -> Result<Checked, String> {
        let text = self.guest.ledger().text();
        self.guest.write("ledger", &text)?;
        let findings =
            self.guest.run("check the promises", &format!("$XTASK guest verify {} /share/ledger", self.seed))?;
        self.guest.ledger().checked(&findings)
    }
}

/// Promises after which raidd is killed: from and to.
const PROMISES: (u64, u64) = (400, 1200);

fn report(cuts: u64, promised: usize, checked: &Checked) -> String {
    format!(
        "recovery cut {cuts} times; {} files ({promised} with promises, {:.1} MiB) and {} rows in {} databases kept, {} file \
         systems clean",
        checked.files,
        checked.bytes as f64 / f64::from(1 << 20),
        checked.rows,
        checked.databases,
        SYSTEMS.len()
    )
}

fn first_lines(text: &str, n: usize) -> String {
    text.lines().take(n).map(str::trim).collect::<Vec<_>>().join(" | ")
}

/// The functions of `crash.sh` and what is to be done with them.
fn script(what: &str) -> String {
    format!("set -eu; NQN={NQN}; . /share/crash.sh\n{what}")
}

fn load_script(seed: u64, contents: u64, round: u32) -> String {
    let files: Vec<String> = SYSTEMS.iter().map(|s| format!("--files /mnt/{s}/{round}")).collect();
    format!(
        "$XTASK guest load $HOST {seed} {contents} {} --rollback /mnt/ext4/db --wal /mnt/xfs/db > /tmp/load.log 2>&1 < /dev/null &",
        files.join(" ")
    )
}

/// Copies this program into the guest's share, with the libraries and the loader that it runs with: the guest's own may be
/// older.
fn copy_self(to: &Path) -> Result<(), String> {
    let fail = |what: &Path, e: std::io::Error| format!("{}: {e}", what.display());
    fs::create_dir_all(to).map_err(|e| fail(to, e))?;
    // Not by its path: where a build has linked the program anew since it started, that path is another file, or none.
    let me = Path::new("/proc/self/exe");
    let maps = fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    let mut libraries: Vec<PathBuf> =
        maps.lines().filter_map(|l| l.find('/').map(|at| PathBuf::from(&l[at..]))).collect();
    libraries.sort();
    libraries.dedup();
    for path in libraries.iter().filter(|p| p.to_string_lossy().contains(".so")) {
        let Some(name) = path.file_name() else { continue };
        let name = if name.to_string_lossy().starts_with("ld-") { "loader".as_ref() } else { name };
        fs::copy(path, to.join(name)).map_err(|e| fail(path, e))?;
    }
    fs::copy(me, to.join("xtask")).map_err(|e| fail(me, e))?;
    Ok(())
}
