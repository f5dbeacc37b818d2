//! The thread of a reactor.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use raid_core::units::Tick;

use super::mailbox::{Mailbox, Sender, Waker, mailbox};
use super::{Poller, now};
use crate::dma::{Memory, Pool, PoolStats};

/// How long an adaptive reactor polls in vain before it sleeps, in nanoseconds.
const SPIN: u64 = 50_000;

/// What a reactor does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// Spin shortly, then sleep until a descriptor, a mailbox or a deadline calls.
    Adaptive,
    /// Never sleep.
    Busy,
}

/// What a poller is given.
pub struct Context<'a> {
    /// The time of this pass.
    pub now: Tick,
    /// This reactor's number.
    pub reactor: u16,
    pool: &'a mut Pool,
    added: &'a mut Vec<Box<dyn Poller>>,
    epoll: &'a Epoll,
    waker: &'a Waker,
}

impl Context<'_> {
    /// What ends this reactor's sleep: for threads that work for one of its pollers. Used on the reactor itself it means
    /// that something now waits for a poller which this pass has already polled, so that another pass must follow.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Ends the reactor's sleep whenever the descriptor is readable, until it is closed.
    pub fn watch(&self, fd: impl AsFd) -> std::io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// This reactor's buffers.
    pub fn pool(&mut self) -> &mut Pool {
        self.pool
    }

    /// Adds a poller; it is first polled on the next pass.
    pub fn add(&mut self, poller: Box<dyn Poller>) {
        self.added.push(poller);
    }
}

/// Time and passes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Nanoseconds in passes that did something.
    pub busy_ns: u64,
    /// Nanoseconds in passes that did nothing, and asleep.
    pub idle_ns: u64,
    /// Passes.
    pub passes: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

#[derive(Default)]
struct SharedStats {
    busy_ns: AtomicU64,
    idle_ns: AtomicU64,
    passes: AtomicU64,
    sleeps: AtomicU64,
    pool_used: AtomicU64,
    pool_high_water: AtomicU64,
    pool_failures: AtomicU64,
    pool_size: AtomicU64,
}

impl SharedStats {
    fn show_pool(&self, pool: PoolStats) {
        self.pool_used.store(pool.used, Ordering::Relaxed);
        self.pool_high_water.store(pool.high_water, Ordering::Relaxed);
        self.pool_failures.store(pool.failures, Ordering::Relaxed);
        self.pool_size.store(pool.size, Ordering::Relaxed);
    }
}

type Work = Box<dyn FnOnce(&mut Reactor) + Send>;

/// A reactor, seen from other threads. Cheap to clone.
#[derive(Clone)]
pub struct ReactorHandle {
    number: u16,
    core: Option<usize>,
    work: Sender<Work>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    stats: Arc<SharedStats>,
    last: Arc<std::sync::Mutex<(ReactorStats, f64)>>,
    thread: Arc<std::sync::Mutex<Option<JoinHandle<()>>>>,
}

impl ReactorHandle {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The core that it is pinned to, if it could be pinned.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// Runs something on the reactor's thread, soon. An error if the reactor has stopped.
    pub fn run(&self, work: Work) -> Result<(), String> {
        if self.work.send(work) { Ok(()) } else { Err(format!("reactor {} has stopped", self.number)) }
    }

    /// Wakes it.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Time and passes since the start.
    pub fn stats(&self) -> ReactorStats {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        ReactorStats {
            busy_ns: get(&self.stats.busy_ns),
            idle_ns: get(&self.stats.idle_ns),
            passes: get(&self.stats.passes),
            sleeps: get(&self.stats.sleeps),
        }
    }

    /// Share of the time that was busy since this was last asked, 0 to 1. Asked again within 100 ms it repeats its answer.
    pub fn busy_share(&self) -> f64 {
        let now = self.stats();
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (busy, idle) = (now.busy_ns - last.0.busy_ns, now.idle_ns - last.0.idle_ns);
        if busy + idle >= 100_000_000 {
            *last = (now, busy as f64 / (busy + idle) as f64);
        }
        last.1
    }

    /// Bytes of its pool that are handed out, and all bytes of it.
    pub fn pool_use(&self) -> (u64, u64) {
        let pool = self.pool_stats();
        (pool.used, pool.size)
    }

    /// Use of its pool, as of its last pass.
    pub fn pool_stats(&self) -> PoolStats {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        PoolStats {
            used: get(&self.stats.pool_used),
            high_water: get(&self.stats.pool_high_water),
            failures: get(&self.stats.pool_failures),
            size: get(&self.stats.pool_size),
        }
    }

    /// Ends the thread after its current pass and waits for it. Its pollers are dropped there.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        // Work is looked at before the flag, so an empty piece of it makes sure that the reactor comes round.
        let _ = self.work.send(Box::new(|_| ()));
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(reactor = self.number, "a reactor ended by a panic");
        }
    }
}

/// The thread's own side.
pub struct Reactor {
    number: u16,
    pool: Pool,
    pollers: Vec<Box<dyn Poller>>,
    added: Vec<Box<dyn Poller>>,
    epoll: Epoll,
    waker: Waker,
}

impl Reactor {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its buffers.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Adds a poller.
    pub fn add(&mut self, poller: Box<dyn Poller>) {
        self.added.push(poller);
    }

    /// How many pollers have this name.
    pub fn pollers_named(&self, name: &str) -> usize {
        self.pollers.iter().chain(&self.added).filter(|p| p.name() == name).count()
    }

    /// A context outside of a pass, for set-up work.
    pub fn context(&mut self) -> Context<'_> {
        Context {
            now: now(),
            reactor: self.number,
            pool: &mut self.pool,
            added: &mut self.added,
            epoll: &self.epoll,
            waker: &self.waker,
        }
    }

    fn pass(&mut self) -> bool {
        self.pollers.append(&mut self.added);
        let mut worked = false;
        let mut finished = false;
        for poller in &mut self.pollers {
            let mut cx = Context {
                now: now(),
                reactor: self.number,
                pool: &mut self.pool,
                added: &mut self.added,
                epoll: &self.epoll,
                waker: &self.waker,
            };
            worked |= poller.poll(&mut cx);
            finished |= poller.finished();
        }
        if finished {
            self.pollers.retain(|p| !p.finished());
        }
        worked || !self.added.is_empty()
    }

    fn next_deadline(&self) -> Option<Tick> {
        self.pollers.iter().filter_map(|p| p.next_deadline()).min()
    }
}

/// Starts one reactor for each core of the list, with `region` bytes of buffers each, and pins it there. A core that
/// cannot be had is said once; the reactor then runs where the kernel puts it.
pub fn start(cores: &[usize], region: u64, polling: Polling) -> std::io::Result<(Memory, Vec<ReactorHandle>)> {
    let memory = Memory::new(cores.len(), region)?;
    let mut handles = Vec::with_capacity(cores.len());
    for (number, core) in cores.iter().copied().enumerate() {
        handles.push(start_one(number as u16, core, memory.clone(), polling)?);
    }
    Ok((memory, handles))
}

fn start_one(number: u16, core: usize, memory: Memory, polling: Polling) -> std::io::Result<ReactorHandle> {
    let waker = Waker::new()?;
    let (work, inbox) = mailbox::<Work>(1024, waker.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stats = Arc::new(SharedStats::default());
    let (bell, flag, shared) = (waker.clone(), stop.clone(), stats.clone());
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(waker.event(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    let (tell, told) = crossbeam_channel::bounded(1);
    let thread = std::thread::Builder::new().name(format!("reactor-{number}")).spawn(move || {
        // A panic here has left an operation half done: nothing may go on as if it had not.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let pinned = pin(core);
            if !pinned {
                tracing::warn!("reactor {number} could not be pinned to core {core}: it runs where the kernel puts it");
            }
            let _ = tell.send(pinned);
            let pool = Pool::new(memory, number);
            let reactor = Reactor { number, pool, pollers: Vec::new(), added: Vec::new(), epoll, waker: bell };
            run(reactor, &inbox, &flag, &shared, polling)
        }))
        .is_err()
        {
            tracing::error!("reactor {number} panicked; the process ends so that no operation goes on half done");
            std::process::abort();
        }
    })?;
    let core = told.recv().unwrap_or(false).then_some(core);
    let thread = Arc::new(std::sync::Mutex::new(Some(thread)));
    Ok(ReactorHandle { number, core, work, waker, stop, stats, last: Arc::default(), thread })
}

/// Pins the calling thread. The kernel's sets of cores, as the library makes them, end at 1024.
fn pin(core: usize) -> bool {
    core < 1024 && core_affinity::set_for_current(core_affinity::CoreId { id: core })
}

/// Divides the time since the start into busy and idle.
struct Laps<'a> {
    begun: Tick,
    stats: &'a SharedStats,
}

impl Laps<'_> {
    /// Ends a lap, and returns the time.
    fn end(&mut self, busy: bool) -> Tick {
        let end = now();
        let counter = if busy { &self.stats.busy_ns } else { &self.stats.idle_ns };
        add(counter, end.0 - self.begun.0);
        self.begun = end;
        end
    }
}

/// One thread writes, so no read-modify-write is needed.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

fn run(mut reactor: Reactor, inbox: &Mailbox<Work>, stop: &AtomicBool, stats: &SharedStats, polling: Polling) {
    let mut laps = Laps { begun: now(), stats };
    let mut idle_since: Option<Tick> = None;
    loop {
        let mut worked = take_work(&mut reactor, inbox);
        if stop.load(Ordering::SeqCst) {
            return;
        }
        worked |= reactor.pass();
        let after = laps.end(worked);
        add(&stats.passes, 1);
        stats.show_pool(reactor.pool.stats());
        if worked {
            idle_since = None;
            continue;
        }
        let since = *idle_since.get_or_insert(after);
        if polling == Polling::Busy || after.0 - since.0 < SPIN {
            std::hint::spin_loop();
            continue;
        }
        reactor.waker.falling_asleep();
        // One more look, after the flag is set: see `Waker::wake`.
        let late = take_work(&mut reactor, inbox) | reactor.pass();
        laps.end(late);
        if late {
            idle_since = None;
        } else {
            sleep(&reactor);
            // Apart from the pass that follows: what that finds to do must not make the sleep count as work.
            laps.end(false);
            add(&stats.sleeps, 1);
        }
        reactor.waker.awake();
    }
}

fn take_work(reactor: &mut Reactor, inbox: &Mailbox<Work>) -> bool {
    let mut worked = false;
    while let Some(work) = inbox.try_recv() {
        work(reactor);
        worked = true;
    }
    worked
}

/// Blocks until something calls or the next deadline comes.
fn sleep(reactor: &Reactor) {
    let timeout = match reactor.next_deadline() {
        None => EpollTimeout::NONE,
        Some(deadline) => {
            let wait = Duration::from_nanos(deadline.0.saturating_sub(now().0)).as_millis() as u64 + 1;
            EpollTimeout::try_from(wait.min(60_000) as u32).unwrap_or(EpollTimeout::MAX)
        }
    };
    // Which one called does not matter, the next pass polls all; and an interrupted sleep is a short one.
    let _ = reactor.epoll.wait(&mut [EpollEvent::empty(); 4], timeout);
}
