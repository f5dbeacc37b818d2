//! What the queues of one controller share. They may sit on different reactors, so all of it is atomic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use raid_core::units::Tick;

use super::subsystem::{HostState, Shared};

/// The most I/O queues of a controller.
pub const MAX_IO_QUEUES: u16 = 64;
/// The most entries of an I/O queue: CAP.MQES plus one.
pub const MAX_ENTRIES: u32 = 1024;
/// Asynchronous Event Requests that are kept at once: AERL plus one.
pub const MAX_EVENTS: usize = 4;
/// The Keep Alive Timer's granularity in units of 100 ms.
pub const KAS: u16 = 1;
/// What a host that asks for a persistent discovery controller without a timeout gets, in milliseconds.
pub const DISCOVERY_KATO: u32 = 120_000;

/// CC.EN.
const CC_EN: u32 = 1;
/// CSTS.RDY.
const CSTS_RDY: u32 = 1;
/// CSTS.CFS.
const CSTS_CFS: u32 = 2;
/// CSTS.SHST: shutdown processing complete.
const CSTS_SHST_COMPLETE: u32 = 0b10 << 2;

/// See the module's head.
#[derive(Debug)]
pub struct Controller {
    /// Its number, unique in the subsystem.
    pub cntlid: u16,
    /// The subsystem's name.
    pub nqn: String,
    /// The subsystem's controllers and connections.
    pub shared: Arc<Shared>,
    /// The host's name.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The host's other connections.
    pub host: Arc<HostState>,
    /// It is a discovery controller.
    pub discovery: bool,
    cc: AtomicU32,
    csts: AtomicU32,
    kato: AtomicU32,
    seen: AtomicU64,
    gone: AtomicBool,
    granted: AtomicU16,
    queues: AtomicU64,
}

impl Controller {
    /// A controller that has just been connected to.
    #[expect(clippy::too_many_arguments, reason = "each is one field of the Connect command")]
    pub fn new(
        cntlid: u16,
        nqn: &str,
        shared: Arc<Shared>,
        host_nqn: &str,
        host_id: [u8; 16],
        host: Arc<HostState>,
        kato: u32,
        now: Tick,
    ) -> Controller {
        Controller {
            cntlid,
            nqn: nqn.to_string(),
            shared,
            host_nqn: host_nqn.to_string(),
            host_id,
            host,
            discovery: nqn == nvme_wire::nqn::DISCOVERY,
            cc: AtomicU32::new(0),
            csts: AtomicU32::new(0),
            kato: AtomicU32::new(kato),
            seen: AtomicU64::new(now.0),
            gone: AtomicBool::new(false),
            granted: AtomicU16::new(MAX_IO_QUEUES),
            queues: AtomicU64::new(0),
        }
    }

    /// Property CC.
    pub fn cc(&self) -> u32 {
        self.cc.load(Ordering::Acquire)
    }

    /// Property CSTS.
    pub fn csts(&self) -> u32 {
        self.csts.load(Ordering::Acquire)
    }

    /// CC.EN is set and CSTS.RDY answers it.
    pub fn ready(&self) -> bool {
        self.csts() & CSTS_RDY != 0 && !self.is_gone()
    }

    /// Writes CC. True if the controller was disabled or shut down: its I/O queues are to be closed.
    pub fn set_cc(&self, cc: u32) -> bool {
        let old = self.cc.swap(cc, Ordering::AcqRel);
        let mut csts = self.csts();
        if cc & CC_EN != 0 && old & CC_EN == 0 {
            csts = CSTS_RDY;
        }
        let disabled = cc & CC_EN == 0 && old & CC_EN != 0;
        if disabled {
            csts &= !(CSTS_RDY | CSTS_SHST_COMPLETE);
        }
        // Nothing that was acknowledged sits in the controller, so a shutdown is complete as soon as it is asked for.
        let shutdown = (cc >> 14) & 3 != 0;
        if shutdown {
            csts |= CSTS_SHST_COMPLETE;
        }
        self.csts.store(csts, Ordering::Release);
        disabled || (shutdown && (old >> 14) & 3 == 0)
    }

    /// The Keep Alive Timeout in milliseconds; 0 is none.
    pub fn kato(&self) -> u32 {
        self.kato.load(Ordering::Relaxed)
    }

    /// Sets the Keep Alive Timeout, rounded up to the granularity.
    pub fn set_kato(&self, millis: u32, now: Tick) {
        let unit = u32::from(KAS) * 100;
        self.kato.store(millis.div_ceil(unit).saturating_mul(unit), Ordering::Relaxed);
        self.saw(now);
    }

    /// Traffic came in: it counts as a keep-alive (CTRATT.TBKAS).
    pub fn saw(&self, now: Tick) {
        self.seen.store(now.0, Ordering::Relaxed);
    }

    /// When the Keep Alive Timer expires, if it runs.
    pub fn expires(&self) -> Option<Tick> {
        let kato = self.kato();
        // One granule more than asked: the host's clock and ours do not tick together.
        (kato != 0).then(|| Tick(self.seen.load(Ordering::Relaxed)).after(u64::from(kato) * 1_000_000 + 100_000_000))
    }

    /// The Keep Alive Timer expired or the admin queue is lost: nothing more is served.
    pub fn fail(&self) {
        self.csts.fetch_or(CSTS_CFS, Ordering::AcqRel);
        self.gone.store(true, Ordering::Release);
    }

    /// True after [`Controller::fail`].
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The host asked for this many I/O queues; returns how many it may have.
    pub fn grant(&self, wanted: u16) -> u16 {
        let granted = wanted.clamp(1, MAX_IO_QUEUES);
        self.granted.store(granted, Ordering::Relaxed);
        granted
    }

    /// I/O queues that the host may have.
    pub fn granted(&self) -> u16 {
        self.granted.load(Ordering::Relaxed)
    }

    /// True if an I/O queue of the controller is connected.
    pub fn has_queues(&self) -> bool {
        self.queues.load(Ordering::Relaxed) != 0
    }

    /// Takes a queue number. False if it is taken.
    pub fn take_queue(&self, qid: u16) -> bool {
        let bit = 1u64 << ((qid - 1) % 64);
        self.queues.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Gives a queue number back.
    pub fn leave_queue(&self, qid: u16) {
        self.queues.fetch_and(!(1u64 << ((qid - 1) % 64)), Ordering::AcqRel);
    }
}
