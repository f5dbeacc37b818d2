//! A small NVMe/TCP initiator over [`std::net::TcpStream`], for the demo and for tests.
//!
//! [`Initiator::connect`] does what a kernel does: an admin queue, the controller enabled and identified, I/O queues, the
//! active namespaces. Then there are two ways to do I/O: [`Initiator::submit`] and [`Initiator::poll`] with tags and many
//! commands in flight, or helpers that wait, such as [`Initiator::read`].

mod connection;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use nvme_wire::command::{Cqe, DsmRange, NSID_ALL, Sqe, Status, control, dsm};
use nvme_wire::fabrics::{
    CNTLID_DYNAMIC, Cap, Cc, ConnectData, Csts, DiscoveryLogEntry, DiscoveryLogHeader, InvalidParameter, PropertyCmd,
    property,
};
use nvme_wire::features::{NumberOfQueues, fid};
use nvme_wire::host::{Data, HostConfig, HostError};
use nvme_wire::identify::{
    IDENTIFY_LEN, IdentifyController, IdentifyNamespace, NamespaceIds, NamespaceList, cns, oncs,
};
use nvme_wire::logs::{GetLogPage, lid};
use nvme_wire::nqn;
use nvme_wire::tcp::Digests;
use nvme_wire::zerocopy::{FromBytes, IntoBytes};

pub use connection::{Connection, Done};

/// How long a helper waits for the controller before it gives up.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of one command where the controller names no limit.
const DEFAULT_TRANSFER: u64 = 1 << 20;
/// Bytes of log page entries that are asked for in one command.
const LOG_CHUNK: u64 = 4096;

/// Why the initiator cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum InitiatorError {
    /// The socket failed.
    #[error("cannot {what} {addr}: {source}; check that the target listens there")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The target.
        addr: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// An address that does not resolve.
    #[error("the address cannot be resolved: {0}")]
    Address(std::io::Error),
    /// The controller closed the connection.
    #[error("the controller closed the connection; its log says why")]
    Closed,
    /// No answer.
    #[error("the controller did not answer in time; check its load and the network")]
    Timeout,
    /// The protocol was broken, or the controller terminated the connection.
    #[error(transparent)]
    Protocol(#[from] HostError),
    /// Connect was refused.
    #[error("the controller refused Connect for queue {qid}: {status}{}", parameter(.invalid))]
    Refused {
        /// The queue.
        qid: u16,
        /// The status.
        status: Status,
        /// The field that is wrong, if the controller named one.
        invalid: Option<InvalidParameter>,
    },
    /// A command failed.
    #[error("{what} failed: {status}")]
    Command {
        /// Which one.
        what: &'static str,
        /// The status.
        status: Status,
    },
    /// An answer that makes no sense.
    #[error("the controller's answer to {0} makes no sense")]
    Malformed(&'static str),
    /// A request that cannot be made.
    #[error("{0}")]
    Invalid(String),
}

fn parameter(invalid: &Option<InvalidParameter>) -> String {
    invalid.map_or_else(String::new, |p| {
        format!(" (byte {} of the {})", p.ipo, if p.in_data { "data" } else { "command" })
    })
}

/// What to connect to, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The subsystem's name.
    pub nqn: String,
    /// The host's name.
    pub host_nqn: String,
    /// The host's identifier; the same for all queues of a host.
    pub host_id: [u8; 16],
    /// I/O queues; fewer if the controller gives fewer.
    pub queues: u16,
    /// Commands in flight per I/O queue; fewer if the controller allows fewer.
    pub depth: u16,
    /// Digests.
    pub digests: Digests,
    /// HPDA: alignment of received data, dwords, zero-based: 0 to 31.
    pub hpda: u8,
    /// KATO in milliseconds; 0 switches the keep alive timer off. Otherwise call [`Initiator::keep_alive`] in time.
    pub kato_ms: u32,
}

/// A namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// Size in logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// What identifies it.
    pub ids: NamespaceIds,
}

/// What an I/O command does. Positions are logical blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads into the buffer.
    Read {
        /// First block.
        slba: u64,
        /// Blocks, 1 to 65536.
        blocks: u32,
    },
    /// Writes the buffer, whose length must be whole blocks.
    Write {
        /// First block.
        slba: u64,
        /// Durable before it completes.
        fua: bool,
    },
    /// Compares with the buffer, whose length must be whole blocks.
    Compare {
        /// First block.
        slba: u64,
    },
    /// Makes all earlier writes durable.
    Flush,
    /// Writes zeros.
    WriteZeroes {
        /// First block.
        slba: u64,
        /// Blocks, 1 to 65536.
        blocks: u32,
        /// The blocks may be deallocated.
        deallocate: bool,
    },
    /// Deallocates up to 256 ranges.
    Deallocate(Vec<DsmRange>),
}

/// An I/O command to submit.
#[derive(Debug)]
pub struct Request {
    /// The namespace.
    pub nsid: u32,
    /// The submitter's name for it.
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// The data; comes back with [`Done`]. A read's is resized.
    pub buffer: Vec<u8>,
}

/// A connected controller.
#[derive(Debug)]
pub struct Initiator {
    admin: Connection,
    io: Vec<Connection>,
    cntlid: u16,
    cap: Cap,
    identify: Box<IdentifyController>,
    namespaces: Vec<Namespace>,
    done: Vec<Done>,
}

impl Initiator {
    /// Connects to a subsystem with this many I/O queues of this depth; both shrink to what the controller gives.
    pub fn connect(
        addr: impl ToSocketAddrs,
        nqn: &str,
        host_nqn: &str,
        queues: u16,
        depth: u16,
        digests: Digests,
    ) -> Result<Initiator, InitiatorError> {
        // One host identifier per name, as the kernel keeps it in /etc/nvme/hostid.
        let mut host_id = [0; 16];
        for (n, byte) in host_nqn.bytes().enumerate() {
            host_id[n % 16] ^= byte.rotate_left(n as u32 / 16 % 8);
        }
        let options = Options {
            nqn: nqn.to_string(),
            host_nqn: host_nqn.to_string(),
            host_id,
            queues,
            depth,
            digests,
            hpda: 0,
            kato_ms: 0,
        };
        Initiator::connect_with(addr, &options)
    }

    /// As [`Initiator::connect`], with everything to choose.
    pub fn connect_with(addr: impl ToSocketAddrs, options: &Options) -> Result<Initiator, InitiatorError> {
        let addr = resolve(addr)?;
        let config = HostConfig { hpda: options.hpda, ..HostConfig::admin(options.digests) };
        let mut admin = Connection::open(addr, config, TIMEOUT)?;
        let data = ConnectData::new(options.host_id, CNTLID_DYNAMIC, &options.nqn, &options.host_nqn);
        let cntlid = connect_queue(&mut admin, 0, options.kato_ms, &data)?;
        let mut initiator = Initiator {
            admin,
            io: Vec::new(),
            cntlid,
            cap: Cap::default(),
            identify: Box::default(),
            namespaces: Vec::new(),
            done: Vec::new(),
        };
        initiator.enable()?;
        initiator.identify = Box::new(
            IdentifyController::parse(&initiator.identify(cns::CONTROLLER, 0)?)
                .ok_or(InitiatorError::Malformed("Identify Controller"))?
                .clone(),
        );
        if options.queues > 0 {
            initiator.connect_io(addr, options)?;
            initiator.rescan()?;
        }
        Ok(initiator)
    }

    /// Reads a discovery controller's log page.
    pub fn discover(addr: impl ToSocketAddrs, host_nqn: &str) -> Result<Vec<DiscoveryLogEntry>, InitiatorError> {
        let mut controller = Initiator::connect(addr, nqn::DISCOVERY, host_nqn, 0, 1, Digests::default())?;
        for _ in 0..10 {
            let header = controller.discovery_header()?;
            let records = usize::try_from(header.numrec.get()).unwrap_or(usize::MAX).min(1024);
            let mut entries = Vec::with_capacity(records);
            for n in 0..records as u64 {
                let page = controller.get_log_page(lid::DISCOVERY, 0, 1024 * (n + 1), 1024)?;
                let (entry, _) = DiscoveryLogEntry::read_from_prefix(&page)
                    .map_err(|_| InitiatorError::Malformed("Get Log Page"))?;
                entries.push(entry);
            }
            // The entries belong together only if nothing changed meanwhile.
            if controller.discovery_header()?.genctr == header.genctr {
                controller.disconnect()?;
                return Ok(entries);
            }
        }
        Err(InitiatorError::Malformed("Get Log Page: the discovery log page changes all the time"))
    }

    fn discovery_header(&mut self) -> Result<DiscoveryLogHeader, InitiatorError> {
        let page = self.get_log_page(lid::DISCOVERY, 0, 0, 1024)?;
        let (header, _) =
            DiscoveryLogHeader::read_from_prefix(&page).map_err(|_| InitiatorError::Malformed("Get Log Page"))?;
        Ok(header)
    }

    /// The controller's number.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The controller's capabilities.
    pub fn cap(&self) -> Cap {
        self.cap
    }

    /// The controller's identify data.
    pub fn controller(&self) -> &IdentifyController {
        &self.identify
    }

    /// The active namespaces, by NSID.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// The namespace of this number.
    pub fn namespace(&self, nsid: u32) -> Result<Namespace, InitiatorError> {
        self.namespaces.iter().copied().find(|n| n.nsid == nsid).ok_or_else(|| {
            let known: Vec<_> = self.namespaces.iter().map(|n| n.nsid.to_string()).collect();
            InitiatorError::Invalid(format!("there is no namespace {nsid}; the active ones are [{}]", known.join(", ")))
        })
    }

    /// I/O queues.
    pub fn queues(&self) -> usize {
        self.io.len()
    }

    /// An I/O queue's connection, for commands of one's own making.
    pub fn queue(&mut self, queue: usize) -> &mut Connection {
        &mut self.io[queue]
    }

    /// Bytes of one command at most.
    pub fn max_transfer(&self) -> u64 {
        self.identify.max_transfer().unwrap_or(DEFAULT_TRANSFER)
    }

    /// CAP, CC.EN off and on, CSTS.RDY, as in Base 3.5.1.
    fn enable(&mut self) -> Result<(), InitiatorError> {
        self.cap = Cap::from_u64(self.property_get(property::CAP)?);
        let timeout = Duration::from_millis(500 * u64::from(self.cap.to.max(1)));
        if Csts::from_u32(self.property_get(property::CSTS)? as u32).rdy {
            self.property_set(property::CC, 0)?;
            self.wait_csts(timeout, |csts| !csts.rdy)?;
        }
        let css = if self.cap.css & Cap::CSS_IO != 0 { 0b110 } else { 0 };
        let cc = Cc { en: true, css, iosqes: 6, iocqes: 4, ..Cc::default() };
        self.property_set(property::CC, u64::from(cc.to_u32()))?;
        self.wait_csts(timeout, |csts| csts.rdy)
    }

    fn wait_csts(&mut self, timeout: Duration, good: impl Fn(Csts) -> bool) -> Result<(), InitiatorError> {
        let deadline = Instant::now() + timeout;
        loop {
            let csts = Csts::from_u32(self.property_get(property::CSTS)? as u32);
            if csts.cfs {
                return Err(InitiatorError::Malformed("Property Get of CSTS: controller fatal status"));
            }
            if good(csts) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(InitiatorError::Timeout);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn connect_io(&mut self, addr: SocketAddr, options: &Options) -> Result<(), InitiatorError> {
        let want = NumberOfQueues { submission: options.queues.into(), completion: options.queues.into() };
        let set = Sqe::set_features(0, fid::NUMBER_OF_QUEUES, want.to_u32());
        let (cqe, _) = self.admin("Set Features, number of queues", set, Data::None, Vec::new())?;
        let given = NumberOfQueues::from_u32(cqe.dw0.get());
        let queues = given.submission.min(given.completion).min(options.queues.into());
        // A queue of n entries holds n - 1 commands; MQES is n - 1 already.
        let mut depth = options.depth.clamp(1, self.cap.mqes.max(1));
        if self.identify.maxcmd.get() > 0 {
            depth = depth.min(self.identify.maxcmd.get());
        }
        let config = HostConfig {
            depth: depth.min(nvme_wire::host::MAX_DEPTH),
            digests: options.digests,
            hpda: options.hpda,
            max_in_capsule: self.identify.max_in_capsule(),
        };
        let data = ConnectData::new(options.host_id, self.cntlid, &options.nqn, &options.host_nqn);
        for qid in 1..=queues as u16 {
            let mut connection = Connection::open(addr, config, TIMEOUT)?;
            connect_queue(&mut connection, qid, 0, &data)?;
            self.io.push(connection);
        }
        Ok(())
    }

    /// Reads the active namespaces anew.
    pub fn rescan(&mut self) -> Result<(), InitiatorError> {
        let mut namespaces = Vec::new();
        let mut after = 0;
        loop {
            let page = self.identify(cns::ACTIVE_NAMESPACES, after)?;
            let (list, _) = NamespaceList::ref_from_prefix(&page).map_err(|_| InitiatorError::Malformed("Identify"))?;
            let nsids: Vec<u32> = list.iter().collect();
            for &nsid in &nsids {
                let page = self.identify(cns::NAMESPACE, nsid)?;
                let id = IdentifyNamespace::parse(&page).ok_or(InitiatorError::Malformed("Identify Namespace"))?;
                let block_size = id.block_size().ok_or(InitiatorError::Malformed("Identify Namespace"))?;
                let blocks = id.nsze.get();
                let ids = NamespaceIds::parse(&self.identify(cns::NAMESPACE_DESCRIPTORS, nsid)?);
                namespaces.push(Namespace { nsid, blocks, block_size, ids });
            }
            match nsids.last() {
                // NSIDs ascend, or a hostile controller would keep this going for ever.
                Some(&last) if nsids.len() == 1024 && last > after => after = last,
                _ => break,
            }
        }
        self.namespaces = namespaces;
        Ok(())
    }

    /// An admin command, waited for. Returns its completion and its buffer.
    pub fn admin(
        &mut self,
        what: &'static str,
        sqe: Sqe,
        data: Data,
        buffer: Vec<u8>,
    ) -> Result<(Cqe, Vec<u8>), InitiatorError> {
        let (cqe, buffer) = run(&mut self.admin, &mut self.done, sqe, data, buffer)?;
        success(what, cqe)?;
        Ok((cqe, buffer))
    }

    /// Property Get.
    pub fn property_get(&mut self, ofst: u32) -> Result<u64, InitiatorError> {
        let (cqe, _) = self.admin("Property Get", PropertyCmd::get(0, ofst).into(), Data::None, Vec::new())?;
        Ok(cqe.result())
    }

    /// Property Set.
    pub fn property_set(&mut self, ofst: u32, value: u64) -> Result<(), InitiatorError> {
        self.admin("Property Set", PropertyCmd::set(0, ofst, value).into(), Data::None, Vec::new())?;
        Ok(())
    }

    /// Identify: 4096 bytes.
    pub fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>, InitiatorError> {
        let read = Data::Read(IDENTIFY_LEN as u32);
        Ok(self.admin("Identify", Sqe::identify(0, cns, nsid), read, Vec::new())?.1)
    }

    /// `len` bytes of a log page, a multiple of 4, from `offset`.
    pub fn get_log_page(&mut self, lid: u8, nsid: u32, offset: u64, len: u32) -> Result<Vec<u8>, InitiatorError> {
        let mut page = Vec::with_capacity(len as usize);
        while page.len() < len as usize {
            let now = LOG_CHUNK.min(u64::from(len) - page.len() as u64);
            let get = GetLogPage { lid, offset: offset + page.len() as u64, len: now, ..GetLogPage::default() };
            let read = Data::Read(now as u32);
            page.extend(self.admin("Get Log Page", get.to_sqe(0, nsid), read, Vec::new())?.1);
        }
        Ok(page)
    }

    /// Keep Alive.
    pub fn keep_alive(&mut self) -> Result<(), InitiatorError> {
        self.admin("Keep Alive", Sqe::keep_alive(0), Data::None, Vec::new())?;
        Ok(())
    }

    /// Submits an I/O command to a queue; nothing is sent before [`Initiator::poll`]. `Err` gives the request back when the
    /// queue is full.
    ///
    /// # Panics
    /// If the namespace is not active, or a buffer is not whole blocks, 1 to 65536.
    pub fn submit(&mut self, queue: usize, request: Request) -> Result<(), Request> {
        if self.io[queue].room() == 0 {
            return Err(request);
        }
        let Request { nsid, tag, op, buffer } = request;
        let namespace = self.namespaces.iter().find(|n| n.nsid == nsid).expect("an active namespace");
        let whole = |len: usize| {
            let blocks = len as u64 / u64::from(namespace.block_size);
            let exact = blocks * u64::from(namespace.block_size) == len as u64;
            assert!(exact && (1..=0x1_0000).contains(&blocks), "{len} bytes are not 1 to 65536 whole blocks");
            blocks as u32
        };
        let len = buffer.len();
        let (sqe, data, buffer) = match op {
            Op::Read { slba, blocks } => {
                let bytes = u64::from(blocks) * u64::from(namespace.block_size);
                let bytes = u32::try_from(bytes).expect("a read of less than 4 GiB");
                (Sqe::read(0, nsid, slba, blocks, 0), Data::Read(bytes), buffer)
            }
            Op::Write { slba, fua } => {
                let control = if fua { control::FUA } else { 0 };
                (Sqe::write(0, nsid, slba, whole(len), control), Data::Write(len as u32), buffer)
            }
            Op::Compare { slba } => (Sqe::compare(0, nsid, slba, whole(len)), Data::Write(len as u32), buffer),
            Op::Flush => (Sqe::flush(0, nsid), Data::None, buffer),
            Op::WriteZeroes { slba, blocks, deallocate } => {
                let control = if deallocate { control::DEAC } else { 0 };
                (Sqe::write_zeroes(0, nsid, slba, blocks, control), Data::None, buffer)
            }
            Op::Deallocate(ranges) => {
                let sqe = Sqe::dataset_management(0, nsid, ranges.len(), dsm::AD);
                let data = ranges.as_bytes().to_vec();
                (sqe, Data::Write(data.len() as u32), data)
            }
        };
        let taken = self.io[queue].submit(sqe, data, tag, buffer);
        assert!(taken.is_ok(), "there was room");
        Ok(())
    }

    /// Commands that a queue still takes.
    pub fn room(&self, queue: usize) -> usize {
        self.io[queue].room()
    }

    /// Commands in flight on a queue.
    pub fn in_flight(&self, queue: usize) -> usize {
        self.io[queue].in_flight()
    }

    /// Sends and receives on a queue; completions are added to `done`. With `wait` it waits so long for at least one, if
    /// any command is in flight; none in that time is not an error.
    pub fn poll(
        &mut self,
        queue: usize,
        done: &mut Vec<Done>,
        wait: Option<Duration>,
    ) -> Result<usize, InitiatorError> {
        let connection = &mut self.io[queue];
        let before = done.len();
        let deadline = wait.map(|w| Instant::now() + w);
        loop {
            connection.pump(done)?;
            let Some(deadline) = deadline else { break };
            if done.len() > before || connection.in_flight() == 0 {
                break;
            }
            match connection.wait(deadline) {
                Err(InitiatorError::Timeout) => break,
                other => other?,
            }
        }
        Ok(done.len() - before)
    }

    /// One I/O command on queue 0, waited for; other commands must not be in flight there. The status is not judged.
    pub fn execute(&mut self, nsid: u32, op: Op, buffer: Vec<u8>) -> Result<Done, InitiatorError> {
        self.namespace(nsid)?;
        if self.io.is_empty() {
            return Err(InitiatorError::Invalid("there is no I/O queue; connect with at least one".to_string()));
        }
        let deadline = Instant::now() + TIMEOUT;
        self.submit(0, Request { nsid, tag: 0, op, buffer })
            .map_err(|_| InitiatorError::Invalid("queue 0 is full; poll it first".to_string()))?;
        let mut done = Vec::new();
        while done.is_empty() {
            self.io[0].pump(&mut done)?;
            if done.is_empty() {
                self.io[0].wait(deadline)?;
            }
        }
        done.pop().ok_or(InitiatorError::Timeout)
    }

    /// Blocks of one command at most, by MDTS and NLB.
    fn max_blocks(&self, namespace: &Namespace) -> u64 {
        (self.max_transfer() / u64::from(namespace.block_size)).clamp(1, 0x1_0000)
    }

    /// Reads whole blocks from `slba` on.
    pub fn read(&mut self, nsid: u32, slba: u64, buffer: &mut [u8]) -> Result<(), InitiatorError> {
        let namespace = self.namespace(nsid)?;
        let size = self.whole_blocks(&namespace, buffer.len())?;
        let chunk = (self.max_blocks(&namespace) * size) as usize;
        for (n, part) in buffer.chunks_mut(chunk).enumerate() {
            let slba = slba + n as u64 * chunk as u64 / size;
            let op = Op::Read { slba, blocks: (part.len() as u64 / size) as u32 };
            let done = self.execute(nsid, op, Vec::new())?;
            success("Read", done.cqe)?;
            part.copy_from_slice(&done.buffer);
        }
        Ok(())
    }

    /// Writes whole blocks from `slba` on, durably with `fua`.
    pub fn write(&mut self, nsid: u32, slba: u64, data: &[u8], fua: bool) -> Result<(), InitiatorError> {
        self.send_data("Write", nsid, slba, data, |slba| Op::Write { slba, fua })
    }

    /// Compares whole blocks from `slba` on. A difference is Compare Failure.
    pub fn compare(&mut self, nsid: u32, slba: u64, data: &[u8]) -> Result<(), InitiatorError> {
        self.send_data("Compare", nsid, slba, data, |slba| Op::Compare { slba })
    }

    fn send_data(
        &mut self,
        what: &'static str,
        nsid: u32,
        slba: u64,
        data: &[u8],
        op: impl Fn(u64) -> Op,
    ) -> Result<(), InitiatorError> {
        let namespace = self.namespace(nsid)?;
        let size = self.whole_blocks(&namespace, data.len())?;
        let chunk = (self.max_blocks(&namespace) * size) as usize;
        for (n, part) in data.chunks(chunk).enumerate() {
            let done = self.execute(nsid, op(slba + n as u64 * chunk as u64 / size), part.to_vec())?;
            success(what, done.cqe)?;
        }
        Ok(())
    }

    fn whole_blocks(&self, namespace: &Namespace, len: usize) -> Result<u64, InitiatorError> {
        let size = u64::from(namespace.block_size);
        if !(len as u64).is_multiple_of(size) {
            return Err(InitiatorError::Invalid(format!(
                "{len} bytes are not whole blocks of {size} bytes; round the length"
            )));
        }
        Ok(size)
    }

    /// Makes all completed writes of a namespace durable.
    pub fn flush(&mut self, nsid: u32) -> Result<(), InitiatorError> {
        success("Flush", self.execute(nsid, Op::Flush, Vec::new())?.cqe)
    }

    /// Writes zeros.
    pub fn write_zeroes(&mut self, nsid: u32, slba: u64, blocks: u64, deallocate: bool) -> Result<(), InitiatorError> {
        self.supported(oncs::WRITE_ZEROES, "Write Zeroes")?;
        let mut at = 0;
        while at < blocks {
            let now = (blocks - at).min(0x1_0000);
            let op = Op::WriteZeroes { slba: slba + at, blocks: now as u32, deallocate };
            success("Write Zeroes", self.execute(nsid, op, Vec::new())?.cqe)?;
            at += now;
        }
        Ok(())
    }

    /// Deallocates ranges, 256 per command.
    pub fn deallocate(&mut self, nsid: u32, ranges: &[DsmRange]) -> Result<(), InitiatorError> {
        self.supported(oncs::DSM, "Dataset Management")?;
        for part in ranges.chunks(dsm::MAX_RANGES) {
            let done = self.execute(nsid, Op::Deallocate(part.to_vec()), Vec::new())?;
            success("Dataset Management", done.cqe)?;
        }
        Ok(())
    }

    fn supported(&self, bit: u16, what: &str) -> Result<(), InitiatorError> {
        if self.identify.oncs.get() & bit == 0 {
            return Err(InitiatorError::Invalid(format!("the controller does not support {what}")));
        }
        Ok(())
    }

    /// Shuts the controller down in order: I/O queues closed, CC.SHN, CSTS.SHST awaited, connection closed.
    pub fn disconnect(mut self) -> Result<(), InitiatorError> {
        self.io.clear();
        let cc = Cc::from_u32(self.property_get(property::CC)? as u32);
        self.property_set(property::CC, u64::from(Cc { shn: 1, ..cc }.to_u32()))?;
        self.wait_csts(TIMEOUT, |csts| csts.shst == Csts::SHST_COMPLETE)
    }

    /// SMART / Health Information of the controller.
    pub fn smart(&mut self) -> Result<Vec<u8>, InitiatorError> {
        self.get_log_page(lid::SMART, NSID_ALL, 0, 512)
    }
}

fn resolve(addr: impl ToSocketAddrs) -> Result<SocketAddr, InitiatorError> {
    let none = || std::io::Error::from(std::io::ErrorKind::NotFound);
    addr.to_socket_addrs().map_err(InitiatorError::Address)?.next().ok_or_else(|| InitiatorError::Address(none()))
}

fn success(what: &'static str, cqe: Cqe) -> Result<(), InitiatorError> {
    let status = cqe.status();
    if status.is_success() { Ok(()) } else { Err(InitiatorError::Command { what, status }) }
}

/// One command, alone on its connection.
fn run(
    connection: &mut Connection,
    done: &mut Vec<Done>,
    sqe: Sqe,
    data: Data,
    buffer: Vec<u8>,
) -> Result<(Cqe, Vec<u8>), InitiatorError> {
    let taken = connection.submit(sqe, data, 0, buffer);
    taken.map_err(|_| InitiatorError::Invalid("the queue is full; poll it first".to_string()))?;
    let done = wait_one(connection, done)?;
    Ok((done.cqe, done.buffer))
}

fn wait_one(connection: &mut Connection, done: &mut Vec<Done>) -> Result<Done, InitiatorError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        connection.pump(done)?;
        if let Some(one) = done.pop() {
            return Ok(one);
        }
        connection.wait(deadline)?;
    }
}

/// Connect. Returns CNTLID.
fn connect_queue(
    connection: &mut Connection,
    qid: u16,
    kato_ms: u32,
    data: &ConnectData,
) -> Result<u16, InitiatorError> {
    connection
        .submit_connect(qid, kato_ms, data, 0)
        .map_err(|e| InitiatorError::Invalid(format!("Connect cannot be sent: {e}")))?;
    let cqe = wait_one(connection, &mut Vec::new())?.cqe;
    let status = cqe.status();
    if !status.is_success() {
        let invalid = status.is(Status::CONNECT_INVALID_PARAMETERS).then(|| InvalidParameter::from_dw0(cqe.dw0.get()));
        return Err(InitiatorError::Refused { qid, status, invalid });
    }
    Ok(cqe.dw0.get() as u16)
}
