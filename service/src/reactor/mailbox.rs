//! Bounded mail to a reactor, with a call that wakes it only if it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_channel::{Receiver, TrySendError, bounded};
use nix::sys::eventfd::{EfdFlags, EventFd};

struct Bell {
    asleep: AtomicBool,
    event: EventFd,
}

/// Wakes one reactor. Cheap to clone.
#[derive(Clone)]
pub struct Waker(Arc<Bell>);

impl Waker {
    pub(super) fn new() -> std::io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Waker(Arc::new(Bell { asleep: AtomicBool::new(false), event })))
    }

    /// Call after the mail is in the box.
    ///
    /// No wake-up is lost: the sender puts the mail in and then reads `asleep`; the reactor sets `asleep` and then looks
    /// into its boxes once more. The fences make one of the two see what the other wrote. The flag is cleared by whoever
    /// rings, so that many senders ring once.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.asleep.load(Ordering::Relaxed) && self.0.asleep.swap(false, Ordering::AcqRel) {
            // The counter can only be full if the reactor is already being woken.
            let _ = self.0.event.write(1);
        }
    }

    /// The reactor says that it is about to sleep; it must look into its boxes once more after this.
    pub(super) fn falling_asleep(&self) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The reactor is awake again.
    pub(super) fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
        // Nothing to read is the common case.
        let _ = self.0.event.read();
    }

    pub(super) fn event(&self) -> &EventFd {
        &self.0.event
    }
}

/// Puts mail in a box.
pub struct Sender<T> {
    channel: crossbeam_channel::Sender<T>,
    waker: Waker,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { channel: self.channel.clone(), waker: self.waker.clone() }
    }
}

impl<T> Sender<T> {
    /// Gives the mail back when the box is full. Mail to a box that is gone is dropped: its reactor has stopped.
    pub fn try_send(&self, mail: T) -> Result<(), T> {
        self.post(mail)?;
        self.wake();
        Ok(())
    }

    /// As `try_send`, without the wake-up: for a run of mail, which [`Sender::wake`] must follow. A wake-up is a full fence,
    /// and costs more than the mail.
    pub fn post(&self, mail: T) -> Result<(), T> {
        match self.channel.try_send(mail) {
            Err(TrySendError::Full(mail)) => Err(mail),
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    /// Wakes the reactor that reads the box.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Waits for room. Only for threads that are not reactors. False if the box is gone.
    pub fn send(&self, mail: T) -> bool {
        let sent = self.channel.send(mail).is_ok();
        self.waker.wake();
        sent
    }
}

/// A box of mail; the reactor that owns it looks into it on every pass.
pub struct Mailbox<T>(Receiver<T>);

impl<T> Mailbox<T> {
    /// The oldest mail.
    pub fn try_recv(&self) -> Option<T> {
        self.0.try_recv().ok()
    }
}

/// A box with room for `capacity` pieces of mail, read by the reactor that `waker` wakes.
pub fn mailbox<T>(capacity: usize, waker: Waker) -> (Sender<T>, Mailbox<T>) {
    let (sender, receiver) = bounded(capacity);
    (Sender { channel: sender, waker }, Mailbox(receiver))
}
