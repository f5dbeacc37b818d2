//! Connecting: the admin queue, what the controller and the namespace say of themselves, and the I/O queues. Blocking,
//! with a time limit: nothing of it is measured.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::pdu::{self, Agreed, Outgoing, SHORT_LEN, kind, u16_at, u32_at, u64_at};

/// How long a target may take for any answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The host identifier of Connect: one for all queues, or the target would not let them join.
const HOST_ID: [u8; 16] = *b"raidbench-loader";

/// Fabrics commands and their types.
const FABRICS: u8 = 0x7f;
const PROPERTY_SET: u32 = 0x00;
const CONNECT: u32 = 0x01;
const PROPERTY_GET: u32 = 0x04;
/// Admin opcodes.
const IDENTIFY: u8 = 0x06;
const SET_FEATURES: u8 = 0x09;
/// Properties, by their offset.
const CAP: u32 = 0x00;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
/// CC: enable, 64-byte submission and 16-byte completion entries.
const CC_ENABLE: u64 = 1 | 6 << 16 | 4 << 20;

/// Whom to connect to, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub target: String,
    pub nqn: String,
    pub hostnqn: String,
    pub digests: Agreed,
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: TcpStream,
    pub agreed: Agreed,
    /// The most data that may go out in one PDU.
    pub max_h2c: usize,
    next_cid: u16,
}

/// A completion.
#[derive(Debug)]
struct Completion {
    result: u64,
    status: u16,
}

/// What is known of the controller and the namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Controller {
    pub id: u16,
    /// Entries of a queue, at most.
    pub entries: u32,
    /// Bytes of a transfer, at most; 0 if there is no limit.
    pub transfer: u64,
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
    /// Opens a socket and exchanges the ICReq and ICResp.
    fn open(address: &Address) -> Result<Connection, String> {
        let name = &address.target;
        let socket = name
            .to_socket_addrs()
            .map_err(|e| format!("--target {name} is not an address and a port, as in 127.0.0.1:4420: {e}"))?
            .next()
            .ok_or_else(|| format!("--target {name} has no address"))?;
        let stream =
            TcpStream::connect_timeout(&socket, PATIENCE).map_err(|e| format!("cannot connect to {name}: {e}"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|e| format!("cannot set up the socket to {name}: {e}"))?;
        let mut out = Connection { stream, agreed: Agreed::default(), max_h2c: 4096, next_cid: 0 };
        let mut request = [0u8; 128];
        request[0] = kind::IC_REQ;
        request[2] = 128;
        request[4] = 128;
        let digests = address.digests;
        request[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
        out.stream.write_all(&request).map_err(|e| out.broken(&e))?;
        let mut answer = [0u8; 128];
        out.stream.read_exact(&mut answer[..8]).map_err(|e| out.broken(&e))?;
        if answer[0] == kind::C2H_TERM {
            out.stream.read_exact(&mut answer[8..SHORT_LEN]).map_err(|e| out.broken(&e))?;
            return Err(pdu::terminated(&answer));
        }
        if answer[0] != kind::IC_RESP || answer[2] != 128 || u32_at(&answer, 4) != 128 {
            return Err(format!("{name} did not answer as an NVMe/TCP target does"));
        }
        out.stream.read_exact(&mut answer[8..]).map_err(|e| out.broken(&e))?;
        let granted = Agreed { header: answer[11] & 1 != 0, data: answer[11] & 2 != 0 };
        if granted != digests {
            return Err(format!("{name} does not do the digests that were asked for; it offers {granted:?}"));
        }
        if answer[10] != 0 {
            return Err(format!(
                "{name} wants data at multiples of {} bytes, which no host does",
                (u32::from(answer[10]) + 1) * 4
            ));
        }
        out.agreed = granted;
        out.max_h2c = u32_at(&answer, 12) as usize;
        if out.max_h2c < 4096 {
            return Err(format!("{name} takes {} bytes of data at a time; at least 4096 are prescribed", out.max_h2c));
        }
        Ok(out)
    }

    fn broken(&self, error: &std::io::Error) -> String {
        let peer = self.stream.peer_addr().map_or_else(|_| "the target".to_owned(), |a| a.to_string());
        format!("the connection to {peer} broke: {error}")
    }

    /// Sends a command and waits for its completion; `data` goes inside the capsule, and what is read comes to `into`.
    fn command(
        &mut self,
        opcode: u8,
        nsid: u32,
        data: &[u8],
        into: &mut [u8],
        dwords: [u32; 6],
    ) -> Result<Completion, String> {
        let cid = self.next_cid;
        self.next_cid += 1;
        let len = if data.is_empty() { into.len() } else { data.len() } as u32;
        let mut head = pdu::command(opcode, cid, nsid, len, !data.is_empty(), dwords);
        if data.is_empty() && into.is_empty() {
            // No data, no descriptor: an empty data block inside the capsule.
            head[8 + 39] = 0x01;
        }
        let out = Outgoing::new(&head, self.agreed, (0, data.len()), data);
        let bytes = out.parts(data).concat();
        self.stream.write_all(&bytes).map_err(|e| self.broken(&e))?;
        self.answer(cid, into)
    }

    fn answer(&mut self, cid: u16, into: &mut [u8]) -> Result<Completion, String> {
        let mut got = 0;
        loop {
            let mut bytes = [0u8; pdu::HEADER_ROOM];
            self.stream.read_exact(&mut bytes[..8]).map_err(|e| self.broken(&e))?;
            let len = pdu::header_len(&bytes, self.agreed)?;
            self.stream.read_exact(&mut bytes[8..len]).map_err(|e| self.broken(&e))?;
            let header = pdu::parse(&bytes[..len], self.agreed)?;
            match header.kind {
                kind::RESPONSE if u16_at(header.bytes, 20) == cid => {
                    return Ok(Completion { result: u64_at(header.bytes, 8), status: u16_at(header.bytes, 22) >> 1 });
                }
                kind::C2H_DATA if u16_at(header.bytes, 8) == cid => {
                    let mut padding = [0u8; 256];
                    self.stream.read_exact(&mut padding[..header.padding]).map_err(|e| self.broken(&e))?;
                    let at = u32_at(header.bytes, 12) as usize;
                    let room = into.get_mut(at..at + header.data).ok_or("more data than was asked for")?;
                    self.stream.read_exact(room).map_err(|e| self.broken(&e))?;
                    if header.digest {
                        let mut digest = [0u8; 4];
                        self.stream.read_exact(&mut digest).map_err(|e| self.broken(&e))?;
                        if crc32c::crc32c(room).to_le_bytes() != digest {
                            return Err("the data digest of an answer on the admin queue is wrong".into());
                        }
                    }
                    got += header.data;
                    if header.flags & pdu::flag::SUCCESS != 0 {
                        return if got == into.len() {
                            Ok(Completion { result: 0, status: 0 })
                        } else {
                            Err(format!("{got} bytes came where {} were asked for", into.len()))
                        };
                    }
                }
                kind::C2H_TERM => return Err(pdu::terminated(header.bytes)),
                other => return Err(format!("an unexpected PDU of type {other:02x}h while connecting")),
            }
        }
    }

    /// As [`Connection::command`], for commands that must succeed.
    fn wanted(
        &mut self,
        what: &str,
        opcode: u8,
        nsid: u32,
        data: &[u8],
        into: &mut [u8],
        dwords: [u32; 6],
    ) -> Result<u64, String> {
        let done = self.command(opcode, nsid, data, into, dwords)?;
        if done.status != 0 {
            return Err(format!("{what} was refused: {}", pdu::status(done.status)));
        }
        Ok(done.result)
    }

    /// The Connect command of queue `qid`. Returns the controller's identifier.
    fn connect(&mut self, address: &Address, qid: u16, entries: u16, controller: u16) -> Result<u16, String> {
        let mut data = [0u8; 1024];
        data[..16].copy_from_slice(&HOST_ID);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        for (at, name, what) in [(256, &address.nqn, "--nqn"), (512, &address.hostnqn, "--hostnqn")] {
            if name.len() > 223 || !name.starts_with("nqn.") {
                return Err(format!("{what}: {name:?} is not an NQN: nqn.YYYY-MM.domain:name, at most 223 bytes"));
            }
            data[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        // RECFMT 0 and QID; SQSIZE, which is one less than the number of entries; no keep-alive.
        let dwords = [u32::from(qid) << 16, u32::from(entries - 1), 0, 0, 0, 0];
        let done = self.command(FABRICS, CONNECT, &data, &mut [], dwords)?;
        if done.status != 0 {
            let why = match done.status & 0x7ff {
                0x182 => ": invalid parameters (is the NQN right?)",
                0x184 => ": the host is not admitted (see --hostnqn)",
                0x180 | 0x181 | 0x183 => ": the controller is not available",
                _ => "",
            };
            return Err(format!("Connect to {} was refused: {}{why}", address.nqn, pdu::status(done.status)));
        }
        Ok(done.result as u16)
    }

    fn property(&mut self, offset: u32, wide: bool) -> Result<u64, String> {
        self.wanted("Property Get", FABRICS, PROPERTY_GET, &[], &mut [], [u32::from(wide), offset, 0, 0, 0, 0])
    }
}

/// Connects the admin queue, enables the controller, and asks for `queues` I/O queues and namespace `nsid`. The
/// connection must be kept as long as the controller is used.
pub(super) fn admin(address: &Address, nsid: u32, queues: u16) -> Result<(Connection, Controller), String> {
    let mut admin = Connection::open(address)?;
    let id = admin.connect(address, 0, 32, 0xffff)?;
    let cap = admin.property(CAP, true)?;
    let set = [0, CC, CC_ENABLE as u32, 0, 0, 0];
    admin.wanted("Property Set of CC", FABRICS, PROPERTY_SET, &[], &mut [], set)?;
    let start = Instant::now();
    while admin.property(CSTS, false)? & 1 == 0 {
        if start.elapsed() > PATIENCE {
            return Err("the controller does not become ready".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut identify = vec![0u8; 4096];
    admin.wanted("Identify Controller", IDENTIFY, 0, &[], &mut identify, [1, 0, 0, 0, 0, 0])?;
    let page = 4096u64 << ((cap >> 48) & 15);
    let transfer = match identify[77] {
        0 => 0,
        n => page.checked_shl(u32::from(n)).unwrap_or(0),
    };
    // IOCCSZ and ICDOFF are in units of 16 bytes; the capsule holds the 64-byte command too.
    let inside = (u32_at(&identify, 1792) as usize * 16)
        .saturating_sub(64)
        .saturating_sub(usize::from(u16_at(&identify, 1800)) * 16);
    if u16_at(&identify, 1800) != 0 {
        return Err("the controller wants in-capsule data at an offset, which NVMe/TCP does not have".into());
    }
    let wish = u32::from(queues - 1);
    let granted = admin.wanted(
        "Set Features (number of queues)",
        SET_FEATURES,
        0,
        &[],
        &mut [],
        [7, wish | wish << 16, 0, 0, 0, 0],
    )?;
    let granted = (granted & 0xffff).min(granted >> 16 & 0xffff) as u32 + 1;
    admin.wanted("Identify Namespace", IDENTIFY, nsid, &[], &mut identify, [0, 0, 0, 0, 0, 0])?;
    let blocks = u64_at(&identify, 0);
    if blocks == 0 {
        return Err(format!("there is no active namespace {nsid} in {}; see --nsid", address.nqn));
    }
    let format = u32_at(&identify, 128 + 4 * usize::from(identify[26] & 15));
    if format & 0xffff != 0 {
        return Err(format!("namespace {nsid} has metadata, which raidbench does not do"));
    }
    let block =
        1u32.checked_shl(format >> 16 & 0xff).filter(|b| *b >= 512).ok_or("an impossible logical block size")?;
    let controller = Controller {
        id,
        entries: (cap & 0xffff) as u32 + 1,
        transfer,
        inside,
        queues: granted,
        bytes: blocks.saturating_mul(u64::from(block)),
        block,
    };
    Ok((admin, controller))
}

/// Connects I/O queue `qid` with room for `depth` commands. Its socket does not block.
pub(super) fn io_queue(address: &Address, controller: &Controller, qid: u16, depth: u16) -> Result<Connection, String> {
    let mut queue = Connection::open(address)?;
    queue.connect(address, qid, depth + 1, controller.id)?;
    queue.stream.set_nonblocking(true).map_err(|e| queue.broken(&e))?;
    Ok(queue)
}
