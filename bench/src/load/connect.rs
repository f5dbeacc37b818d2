//! Connecting: the admin queue, what the controller and the namespace say of themselves, and the I/O queues. Blocking,
//! with a time limit: nothing of it is measured.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use nvme_wire::command::{Cqe, Sgl, Sqe, Status};
use nvme_wire::fabrics::{CNTLID_DYNAMIC, Cap, Cc, ConnectCmd, ConnectData, Csts, PropertyCmd, property};
use nvme_wire::features::{NumberOfQueues, fid};
use nvme_wire::identify::{IDENTIFY_LEN, IdentifyController, IdentifyNamespace, cns};
use nvme_wire::nqn;
use nvme_wire::tcp::{Digests, Direction, Event, Framer, Header, ICReq, Params};
use nvme_wire::zerocopy::IntoBytes;

use super::pdu::{Outgoing, Received, Receiver};

/// How long a target may take for any answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The host identifier of Connect: one for all queues, or the target would not let them join.
const HOST_ID: [u8; 16] = *b"raidbench-loader";

/// Entries of the admin queue.
const ADMIN_ENTRIES: u32 = 32;

/// Whom to connect to, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub target: String,
    pub nqn: String,
    pub hostnqn: String,
    pub digests: Digests,
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: TcpStream,
    pub receiver: Receiver,
    /// The most data that may go out in one PDU.
    pub max_h2c: usize,
    next_cid: u16,
}

/// What is known of the controller and the namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Controller {
    pub id: u16,
    /// Entries of a queue, at most.
    pub entries: u32,
    /// Bytes of a transfer, at most; none if there is no limit.
    pub transfer: Option<u64>,
    /// Bytes of data inside a command capsule, at most.
    pub inside: usize,
    /// I/O queues that the controller grants.
    pub queues: u32,
    /// The namespace's size in bytes.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block: u32,
}

impl Connection {
    /// Opens a socket and exchanges the ICReq and ICResp. No data PDU from the target may have more than `max_data` bytes.
    fn open(address: &Address, max_data: u32) -> Result<Connection, String> {
        let name = &address.target;
        let socket = name
            .to_socket_addrs()
            .map_err(|e| format!("--target {name} is not an address and a port, as in 127.0.0.1:4420: {e}"))?
            .next()
            .ok_or_else(|| format!("--target {name} has no address"))?;
        let mut stream = TcpStream::connect_timeout(&socket, PATIENCE)
            .map_err(|e| format!("cannot connect to {name}: {e}; is a target listening there?"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|e| format!("cannot set up the socket to {name}: {e}"))?;
        let broken = |e: std::io::Error| format!("{name} did not answer as an NVMe/TCP target does: {e}");
        stream.write_all(ICReq::new(0, address.digests).as_bytes()).map_err(broken)?;
        let mut framer = Framer::new(Params::new(Direction::ToHost, 0, max_data));
        let mut bytes = vec![];
        let (digests, cpda, max_h2c) = loop {
            match framer.next(&bytes).map_err(|e| format!("{name} did not answer as an NVMe/TCP target does: {e}"))?.1 {
                Event::NeedMore(need) => {
                    let have = bytes.len();
                    bytes.resize(need, 0);
                    stream.read_exact(&mut bytes[have..]).map_err(broken)?;
                }
                Event::Pdu { header: Header::ICResp(answer), .. } => {
                    break (Digests::from_dgst(answer.dgst), answer.cpda, answer.maxh2cdata.get() as usize);
                }
                Event::Pdu { header: Header::TermReq(request), .. } => {
                    return Err(format!("{name} refused the connection: fatal error {:02x}h", request.fes.get()));
                }
                _ => return Err(format!("{name} did not answer as an NVMe/TCP target does")),
            }
        };
        if digests != address.digests {
            return Err(format!("{name} does not do the digests that were asked for; it offers {digests:?}"));
        }
        if cpda != 0 {
            let align = (u32::from(cpda) + 1) * 4;
            return Err(format!("{name} wants data at multiples of {align} bytes, which hosts do not do"));
        }
        framer.establish(digests, 0);
        Ok(Connection { stream, receiver: Receiver::new(framer), max_h2c, next_cid: 0 })
    }

    fn broken(&self, error: &std::io::Error) -> String {
        let peer = self.stream.peer_addr().map_or_else(|_| "the target".to_owned(), |a| a.to_string());
        format!("the connection to {peer} broke: {error}")
    }

    /// Sends a command and waits for its completion; `data` goes inside the capsule, and what is read comes to `into`.
    fn command(&mut self, mut sqe: Sqe, data: &[u8], into: &mut [u8]) -> Result<Cqe, String> {
        let cid = self.next_cid;
        self.next_cid += 1;
        sqe.cid = cid.into();
        sqe.sgl = if into.is_empty() { Sgl::in_capsule(data.len() as u32) } else { Sgl::transport(into.len() as u32) };
        let out = Outgoing::command(sqe, self.receiver.digests(), (0, data.len()), data);
        self.stream.write_all(&out.parts(data).concat()).map_err(|e| self.broken(&e))?;
        self.answer(cid, into)
    }

    fn answer(&mut self, cid: u16, into: &mut [u8]) -> Result<Cqe, String> {
        let mut scratch = vec![0; 16 << 10];
        let (mut at, mut success) = (0, false);
        loop {
            let n = self.stream.read(&mut scratch).map_err(|e| self.broken(&e))?;
            if n == 0 {
                return Err("the target closed the connection".into());
            }
            let mut bytes = &scratch[..n];
            loop {
                match self.receiver.next(&mut bytes)? {
                    Some(Received::Response(cqe)) if cqe.cid.get() == cid => return Ok(cqe),
                    Some(Received::Data(header)) if header.cccid.get() == cid => {
                        at = header.datao.get() as usize;
                        success = header.is_success();
                    }
                    Some(Received::DataEnd) if success => return Ok(Cqe::new(cid, 0, Status::SUCCESS)),
                    Some(Received::DataEnd) => {}
                    Some(other) => return Err(format!("an unexpected answer while connecting: {other:?}")),
                    None if bytes.is_empty() => break,
                    None => {
                        let n = self.receiver.payload_left().min(bytes.len());
                        into.get_mut(at..at + n).ok_or("more data than was asked for")?.copy_from_slice(&bytes[..n]);
                        self.receiver.payload(&bytes[..n]);
                        at += n;
                        bytes = &bytes[n..];
                    }
                }
            }
        }
    }

    /// As [`Connection::command`], for commands that must succeed. Returns the result.
    fn wanted(&mut self, what: &str, sqe: Sqe, into: &mut [u8]) -> Result<u64, String> {
        let done = self.command(sqe, &[], into)?;
        match done.status() {
            status if status.is_success() => Ok(done.result()),
            status => Err(format!("{what} was refused: {status}")),
        }
    }

    /// The Connect command of queue `qid`. Returns the controller's identifier.
    fn connect(&mut self, address: &Address, qid: u16, entries: u32, controller: u16) -> Result<u16, String> {
        for (name, option) in [(&address.nqn, "--nqn"), (&address.hostnqn, "--hostnqn")] {
            nqn::check(name).map_err(|e| format!("{option} {name:?}: {e}"))?;
        }
        let data = ConnectData::new(HOST_ID, controller, &address.nqn, &address.hostnqn);
        // No keep-alive: a load is never silent for long, and the admin queue has nothing else to do.
        let done = self.command(ConnectCmd::new(0, qid, entries, 0).into(), data.as_bytes(), &mut [])?;
        let status = done.status();
        if !status.is_success() {
            let hint = if status.is(Status::CONNECT_INVALID_PARAMETERS) {
                " (is the NQN right?)"
            } else if status.is(Status::CONNECT_INVALID_HOST) {
                " (see --hostnqn)"
            } else {
                ""
            };
            return Err(format!("Connect to {} was refused: {status}{hint}", address.nqn));
        }
        Ok(done.dw0.get() as u16)
    }

    fn property(&mut self, offset: u32) -> Result<u64, String> {
        self.wanted("Property Get", PropertyCmd::get(0, offset).into(), &mut [])
    }
}

/// Connects the admin queue, enables the controller, and asks for `queues` I/O queues and namespace `nsid`. The
/// connection must be kept as long as the controller is used.
pub(super) fn admin(address: &Address, nsid: u32, queues: u16) -> Result<(Connection, Controller), String> {
    let mut admin = Connection::open(address, IDENTIFY_LEN as u32)?;
    let id = admin.connect(address, 0, ADMIN_ENTRIES, CNTLID_DYNAMIC)?;
    let cap = Cap::from_u64(admin.property(property::CAP)?);
    // CC.CSS is 110b where the controller offers several command sets, as Linux sets it.
    let css = if cap.css & Cap::CSS_IO != 0 { 6 } else { 0 };
    let cc = Cc { en: true, css, iosqes: 6, iocqes: 4, ..Cc::default() };
    let enable = PropertyCmd::set(0, property::CC, u64::from(cc.to_u32()));
    admin.wanted("Property Set of CC", enable.into(), &mut [])?;
    let start = Instant::now();
    while !Csts::from_u32(admin.property(property::CSTS)? as u32).rdy {
        if start.elapsed() > PATIENCE {
            return Err("the controller does not become ready".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut page = vec![0u8; IDENTIFY_LEN];
    admin.wanted("Identify Controller", Sqe::identify(0, cns::CONTROLLER, 0), &mut page)?;
    let identified = IdentifyController::parse(&page).ok_or("Identify Controller brought too little")?;
    if identified.icdoff.get() != 0 {
        return Err("the controller wants in-capsule data at an offset, which NVMe/TCP does not have".into());
    }
    let (transfer, inside) = (identified.max_transfer(), identified.max_in_capsule() as usize);
    let wish = NumberOfQueues { submission: queues.into(), completion: queues.into() };
    let set = Sqe::set_features(0, fid::NUMBER_OF_QUEUES, wish.to_u32());
    let granted = NumberOfQueues::from_u32(admin.wanted("Set Features (number of queues)", set, &mut [])? as u32);
    admin.wanted("Identify Namespace", Sqe::identify(0, cns::NAMESPACE, nsid), &mut page)?;
    let namespace = IdentifyNamespace::parse(&page).ok_or("Identify Namespace brought too little")?;
    if namespace.nsze.get() == 0 {
        return Err(format!("there is no active namespace {nsid} in {}; see --nsid", address.nqn));
    }
    if namespace.format().ms.get() != 0 {
        return Err(format!("namespace {nsid} has metadata, which raidbench does not do"));
    }
    let block = namespace.block_size().ok_or("an impossible logical block size")?;
    let controller = Controller {
        id,
        entries: u32::from(cap.mqes) + 1,
        transfer,
        inside,
        queues: granted.submission.min(granted.completion),
        bytes: namespace.nsze.get().saturating_mul(u64::from(block)),
        block,
    };
    Ok((admin, controller))
}

/// Connects I/O queue `qid` with room for `depth` commands of `unit` bytes. Its socket does not block.
pub(super) fn io_queue(
    address: &Address,
    controller: &Controller,
    qid: u16,
    depth: u16,
    unit: u32,
) -> Result<Connection, String> {
    let mut queue = Connection::open(address, unit)?;
    queue.connect(address, qid, u32::from(depth) + 1, controller.id)?;
    queue.stream.set_nonblocking(true).map_err(|e| queue.broken(&e))?;
    Ok(queue)
}
