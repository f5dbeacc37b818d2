use std::sync::mpsc;
use std::time::Duration;

use super::*;

struct Echo {
    inbox: Mailbox<u64>,
    peer: Sender<u64>,
    report: Option<mpsc::Sender<u64>>,
}

const ROUNDS: u64 = 100_000;

impl Poller for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn poll(&mut self, _cx: &mut Context) -> bool {
        let Some(n) = self.inbox.try_recv() else { return false };
        if n >= ROUNDS {
            if let Some(report) = self.report.take() {
                report.send(n).unwrap();
            }
            return true;
        }
        // Now and then long enough for the other side to fall asleep, which is where a wake-up could be lost.
        if n.is_multiple_of(211) {
            std::thread::sleep(Duration::from_micros(120));
        }
        self.peer.try_send(n + 1).unwrap();
        true
    }
}

#[test]
fn no_wake_up_is_lost_between_two_reactors() {
    let (_, reactors) = start(&[0, 1], 4 << 20, Polling::Adaptive).unwrap();
    let (to_0, box_0) = mailbox(8, reactors[0].waker());
    let (to_1, box_1) = mailbox(8, reactors[1].waker());
    let (report, result) = mpsc::channel();
    let other = report.clone();
    let (peer_0, peer_1) = (to_0.clone(), to_1.clone());
    reactors[0]
        .run(Box::new(move |r| r.add(Box::new(Echo { inbox: box_0, peer: peer_1, report: Some(report) }))))
        .unwrap();
    reactors[1]
        .run(Box::new(move |r| r.add(Box::new(Echo { inbox: box_1, peer: peer_0, report: Some(other) }))))
        .unwrap();
    to_0.try_send(0).unwrap();
    // A lost wake-up would leave both asleep for ever.
    assert_eq!(result.recv_timeout(Duration::from_secs(60)).expect("a wake-up was lost"), ROUNDS);
    assert!(reactors.iter().map(|r| r.stats().sleeps).sum::<u64>() > 0, "no reactor ever slept, so nothing was tested");
    for reactor in reactors {
        reactor.stop();
        assert!(reactor.run(Box::new(|_| ())).is_err(), "a stopped reactor took work");
    }
}

#[test]
fn a_full_box_gives_the_mail_back() {
    let (_, reactors) = start(&[0], 4 << 20, Polling::Adaptive).unwrap();
    let (sender, inbox) = mailbox(2, reactors[0].waker());
    assert_eq!((sender.try_send(1), sender.try_send(2), sender.try_send(3)), (Ok(()), Ok(()), Err(3)));
    assert_eq!(inbox.try_recv(), Some(1));
    assert_eq!(sender.try_send(3), Ok(()));
    reactors[0].stop();
}

struct Timer {
    due: raid_core::units::Tick,
    report: Option<mpsc::Sender<()>>,
}

impl Poller for Timer {
    fn name(&self) -> &str {
        "timer"
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        if cx.now < self.due {
            return false;
        }
        self.report.take().map(|r| r.send(())).is_some()
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        self.report.as_ref().map(|_| self.due)
    }

    fn finished(&self) -> bool {
        self.report.is_none()
    }
}

#[test]
fn a_deadline_ends_a_sleep() {
    let (_, reactors) = start(&[0], 4 << 20, Polling::Adaptive).unwrap();
    let (report, result) = mpsc::channel();
    let due = now().after(30_000_000);
    reactors[0].run(Box::new(move |r| r.add(Box::new(Timer { due, report: Some(report) })))).unwrap();
    result.recv_timeout(Duration::from_secs(60)).expect("the deadline was missed");
    reactors[0].stop();
}

/// A sleep that ends with something to do is idle time all the same.
#[test]
fn sleep_is_not_counted_as_work() {
    let (_, reactors) = start(&[0], 4 << 20, Polling::Adaptive).unwrap();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        let (report, result) = mpsc::channel();
        reactors[0].run(Box::new(move |_| report.send(()).unwrap())).unwrap();
        result.recv().unwrap();
    }
    let stats = reactors[0].stats();
    assert!(stats.sleeps > 0, "it never slept, so nothing was tested");
    assert!(stats.busy_ns < stats.idle_ns, "{stats:?}");
    reactors[0].stop();
}

/// Gives the poller before it something to do, now and then, after that one was polled.
struct Late {
    gift: std::rc::Rc<std::cell::Cell<bool>>,
    polls: u64,
}

impl Poller for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        self.polls += 1;
        // A prime step, so that some gifts meet the last look before a sleep.
        if self.polls.is_multiple_of(7) && !self.gift.replace(true) {
            cx.waker().wake();
        }
        // Each pass takes so long that the next one is the last before a sleep.
        std::thread::sleep(Duration::from_micros(60));
        false
    }
}

struct Early {
    gift: std::rc::Rc<std::cell::Cell<bool>>,
    left: u64,
    report: mpsc::Sender<()>,
}

impl Poller for Early {
    fn name(&self) -> &str {
        "early"
    }

    fn poll(&mut self, _cx: &mut Context) -> bool {
        let got = self.gift.replace(false);
        self.left -= u64::from(got);
        if self.left == 0 {
            let _ = self.report.send(());
        }
        got
    }

    fn finished(&self) -> bool {
        self.left == 0
    }

    fn next_deadline(&self) -> Option<raid_core::units::Tick> {
        // The polls must go on until there is a gift; only a gift that has been given must not be slept over.
        (!self.gift.get()).then(|| now().after(100_000))
    }
}

#[test]
fn a_poller_that_was_polled_too_early_is_polled_again_before_a_sleep() {
    let (_, reactors) = start(&[0], 4 << 20, Polling::Adaptive).unwrap();
    let (report, result) = mpsc::channel();
    let work = Box::new(move |r: &mut Reactor| {
        let gift = std::rc::Rc::new(std::cell::Cell::new(false));
        r.add(Box::new(Early { gift: gift.clone(), left: 40, report }));
        r.add(Box::new(Late { gift, polls: 0 }));
    });
    reactors[0].run(work).unwrap();
    result.recv_timeout(Duration::from_secs(60)).expect("the reactor slept although a poller had something to do");
    reactors[0].stop();
}

#[test]
fn the_use_of_the_pool_is_seen_from_outside_while_the_reactor_never_sleeps() {
    let (_, reactors) = start(&[0], 4 << 20, Polling::Busy).unwrap();
    let (report, result) = mpsc::channel();
    let work = Box::new(move |r: &mut Reactor| {
        let slot = r.pool().alloc(65536).unwrap();
        r.pool().free(slot);
        assert!(r.pool().alloc(2 << 20).is_none());
        report.send(()).unwrap();
    });
    reactors[0].run(work).unwrap();
    result.recv().unwrap();
    while reactors[0].pool_stats().high_water != 65536 {
        std::thread::yield_now();
    }
    assert_eq!(reactors[0].pool_use(), (0, 4 << 20));
    assert_eq!(reactors[0].stats().sleeps, 0);
    reactors[0].stop();
}

struct Panics;

impl Poller for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn poll(&mut self, _cx: &mut Context) -> bool {
        panic!("an invariant does not hold");
    }
}

/// An operation that a panic left half done must not be taken for done: the process ends, and says so.
#[test]
fn a_panic_in_a_poller_ends_the_process() {
    const CHILD: &str = "RAIDD_TEST_PANICS";
    if std::env::var_os(CHILD).is_some() {
        let (_, reactors) = start(&[0], 4 << 20, Polling::Adaptive).unwrap();
        reactors[0].run(Box::new(|r| r.add(Box::new(Panics)))).unwrap();
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reactor::tests::a_panic_in_a_poller_ends_the_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&out.status);
    assert_eq!(signal, Some(nix::libc::SIGABRT), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("an invariant does not hold"), "{out:?}");
}

#[test]
fn a_core_that_cannot_be_had_is_said_and_the_reactor_runs() {
    let here = core_affinity::get_core_ids().unwrap()[0].id;
    let (_, reactors) = start(&[here, 1023, 5000], 4 << 20, Polling::Adaptive).unwrap();
    assert_eq!(reactors.iter().map(ReactorHandle::core).collect::<Vec<_>>(), [Some(here), None, None]);
    for reactor in reactors {
        let (report, result) = mpsc::channel();
        reactor.run(Box::new(move |r| report.send(r.number()).unwrap())).unwrap();
        assert_eq!(result.recv_timeout(Duration::from_secs(60)), Ok(reactor.number()));
        reactor.stop();
    }
}
