use std::sync::mpsc;
use std::time::Duration;

use super::*;

struct Echo {
    inbox: Mailbox<u64>,
    peer: Sender<u64>,
    report: Option<mpsc::Sender<u64>>,
}

const ROUNDS: u64 = 20_000;

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
        if n.is_multiple_of(97) {
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
