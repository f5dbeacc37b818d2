//! The load generator against a small target in memory, which can be told to misbehave.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use clap::Parser;

use nvme_wire::tcp::{PduType, flags};

use super::*;
use crate::cli::Cli;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

const NQN: &str = "nqn.2024-01.test:memory";
const BLOCK: usize = 512;
const INSIDE: usize = 8192;

/// How the target misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Writes beyond the first 64 KiB fail.
    FailWrites,
    /// One bit of each read is flipped.
    FlipBit,
    /// Writes are acknowledged and forgotten.
    ForgetWrites,
    /// Reads bring one block too few.
    ShortReads,
    /// Connections are closed at the first read.
    Close,
}

type Memory = Arc<Mutex<Vec<u8>>>;

/// Starts a target of `bytes` bytes; returns its address.
fn target(bytes: usize, fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let memory: Memory = Arc::new(Mutex::new(vec![0; bytes]));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let memory = memory.clone();
            // The end of a connection ends its thread, by whatever error.
            std::thread::spawn(move || {
                Session { stream: stream.unwrap(), memory, fault, header: false, data: false }.serve()
            });
        }
    });
    address
}

struct Session {
    stream: TcpStream,
    memory: Memory,
    fault: Fault,
    header: bool,
    data: bool,
}

impl Session {
    fn receive(&mut self) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common)?;
        let mut rest = vec![0; u32_at(&common, 4) as usize - 8];
        self.stream.read_exact(&mut rest)?;
        let mut pdu = common.to_vec();
        pdu.extend(rest);
        let head_len = usize::from(pdu[2]);
        if common[0] == PduType::ICReq as u8 {
            return Ok((pdu, vec![]));
        }
        let mut data = pdu.split_off(head_len);
        if self.header {
            let digest: Vec<u8> = data.drain(..4).collect();
            assert_eq!(digest, crc32c::crc32c(&pdu).to_le_bytes(), "header digest");
        }
        if self.data && !data.is_empty() {
            let digest = data.split_off(data.len() - 4);
            assert_eq!(digest, crc32c::crc32c(&data).to_le_bytes(), "data digest");
        }
        Ok((pdu, data))
    }

    fn send(&mut self, mut head: Vec<u8>, data: &[u8]) -> std::io::Result<()> {
        let digest = if self.header { 4 } else { 0 };
        let tail = if self.data && !data.is_empty() { 4 } else { 0 };
        head[1] |= if self.header { flags::HDGSTF } else { 0 } | if tail > 0 { flags::DDGSTF } else { 0 };
        head[2] = head.len() as u8;
        head[3] = if data.is_empty() { 0 } else { (head.len() + digest) as u8 };
        let total = (head.len() + digest + data.len() + tail) as u32;
        head[4..8].copy_from_slice(&total.to_le_bytes());
        let crc = crc32c::crc32c(&head).to_le_bytes();
        if self.header {
            head.extend(crc);
        }
        head.extend(data);
        if tail > 0 {
            head.extend(crc32c::crc32c(data).to_le_bytes());
        }
        self.stream.write_all(&head)
    }

    fn respond(&mut self, cid: u16, result: u64, status: u16) -> std::io::Result<()> {
        let mut head = vec![0; 24];
        head[0] = PduType::CapsuleResp as u8;
        head[8..16].copy_from_slice(&result.to_le_bytes());
        head[20..22].copy_from_slice(&cid.to_le_bytes());
        head[22..24].copy_from_slice(&(status << 1).to_le_bytes());
        self.send(head, &[])
    }

    /// Data in pieces, the last with a response of its own or with the success flag, by turns.
    fn send_data(&mut self, cid: u16, data: &[u8]) -> std::io::Result<()> {
        let success = cid.is_multiple_of(2);
        let pieces: Vec<_> = data.chunks(3 * BLOCK).collect();
        for (i, piece) in pieces.iter().enumerate() {
            let mut head = vec![0; 24];
            head[0] = PduType::C2HData as u8;
            if i + 1 == pieces.len() {
                head[1] = flags::LAST_PDU | if success { flags::SUCCESS } else { 0 };
            }
            head[8..10].copy_from_slice(&cid.to_le_bytes());
            head[12..16].copy_from_slice(&((i * 3 * BLOCK) as u32).to_le_bytes());
            head[16..20].copy_from_slice(&(piece.len() as u32).to_le_bytes());
            self.send(head, piece)?;
        }
        if success { Ok(()) } else { self.respond(cid, 0, 0) }
    }

    fn serve(mut self) -> std::io::Result<()> {
        // Without it a response waits for the host's delayed acknowledgement of the data before it.
        self.stream.set_nodelay(true)?;
        let (request, _) = self.receive()?;
        let mut answer = vec![0; 128];
        answer[0] = PduType::ICResp as u8;
        answer[2] = 128;
        answer[4] = 128;
        answer[11] = request[11];
        // MAXH2CDATA: the smallest that is allowed, so that large writes go in pieces.
        answer[12..16].copy_from_slice(&4096u32.to_le_bytes());
        self.stream.write_all(&answer)?;
        (self.header, self.data) = (request[11] & 1 != 0, request[11] & 2 != 0);
        let mut admin = true;
        loop {
            let (pdu, data) = self.receive()?;
            let sqe = pdu[8..72].to_vec();
            let cid = u16_at(&sqe, 2);
            match sqe[0] {
                0x7f if sqe[4] == 1 => {
                    admin = u16_at(&sqe, 42) == 0;
                    let name = &data[256..256 + NQN.len()];
                    let status = if name == NQN.as_bytes() { 0 } else { 0x4182 };
                    self.respond(cid, 7, status)?;
                }
                // CAP: 64 entries; CSTS: ready.
                0x7f if sqe[4] == 4 => self.respond(cid, if u32_at(&sqe, 44) == 0 { 63 } else { 1 }, 0)?,
                0x7f => self.respond(cid, 0, 0)?,
                0x09 if admin => self.respond(cid, 3 | 3 << 16, 0)?,
                0x06 if admin => {
                    let mut page = vec![0; 4096];
                    if sqe[40] == 1 {
                        page[77] = 5;
                        page[1792..1796].copy_from_slice(&(((INSIDE + 64) / 16) as u32).to_le_bytes());
                    } else {
                        let blocks = self.memory.lock().unwrap().len() / BLOCK;
                        page[..8].copy_from_slice(&(blocks as u64).to_le_bytes());
                        page[130] = 9;
                    }
                    self.send_data(cid, &page)?;
                }
                opcode => {
                    let at = u64_at(&sqe, 40) as usize * BLOCK;
                    let len = (usize::from(u16_at(&sqe, 48)) + 1) * BLOCK;
                    assert_eq!(u32_at(&sqe, 32) as usize, len);
                    if opcode == 2 { self.read(cid, at, len)? } else { self.write(cid, at, len, data)? }
                }
            }
        }
    }

    fn read(&mut self, cid: u16, at: usize, len: usize) -> std::io::Result<()> {
        let mut data = self.memory.lock().unwrap()[at..at + len].to_vec();
        match self.fault {
            Fault::FlipBit => data[len / 2] ^= 1,
            Fault::ShortReads => data.truncate(len - BLOCK),
            Fault::Close => return Err(std::io::ErrorKind::Other.into()),
            _ => {}
        }
        self.send_data(cid, &data)
    }

    fn write(&mut self, cid: u16, at: usize, len: usize, mut data: Vec<u8>) -> std::io::Result<()> {
        assert_eq!(data.is_empty(), len > INSIDE, "in-capsule data up to the limit, R2T above");
        if data.is_empty() {
            // Two R2Ts, one after the other; commands may come in between, which this target keeps out by its test's
            // depth of one.
            for (offset, part) in [(0, len / 2), (len / 2, len - len / 2)] {
                let mut head = vec![0; 24];
                head[0] = PduType::R2T as u8;
                head[8..10].copy_from_slice(&cid.to_le_bytes());
                head[10..12].copy_from_slice(&0x55aau16.to_le_bytes());
                head[12..16].copy_from_slice(&(offset as u32).to_le_bytes());
                head[16..20].copy_from_slice(&(part as u32).to_le_bytes());
                self.send(head, &[])?;
                let mut got = 0;
                while got < part {
                    let (pdu, piece) = self.receive()?;
                    assert_eq!((pdu[0], u16_at(&pdu, 8), u16_at(&pdu, 10)), (PduType::H2CData as u8, cid, 0x55aa));
                    assert_eq!(u32_at(&pdu, 12) as usize, offset + got);
                    assert!(piece.len() <= 4096);
                    got += piece.len();
                    assert_eq!(pdu[1] & flags::LAST_PDU != 0, got == part);
                    data.extend(piece);
                }
            }
        }
        assert_eq!(data.len(), len);
        if self.fault == Fault::FailWrites && at >= 64 << 10 {
            return self.respond(cid, 0, 0x280);
        }
        if self.fault != Fault::ForgetWrites {
            self.memory.lock().unwrap()[at..at + len].copy_from_slice(&data);
        }
        self.respond(cid, 0, 0)
    }
}

/// The load of a command line, against a target of 256 KiB.
fn load(fault: Fault, options: &str) -> Result<LoadResult, Failure> {
    let address = target(256 << 10, fault);
    let line = format!("raidbench --target {address} --nqn {NQN} --time 0.3 --warmup 0.02 {options}");
    once(&Cli::try_parse_from(line.split_whitespace()).unwrap().load)
}

#[test]
fn reads_and_writes_are_counted_and_verified() {
    for digests in ["none", "header", "data", "both"] {
        let result = load(Fault::None, &format!("--rw randrw --qd 8 --verify --digests {digests}")).unwrap();
        assert!(result.read_iops > 0.0 && result.write_iops > 0.0, "{result:?}");
        assert_eq!(result.errors, 0);
        let verify = result.verify.unwrap();
        assert!(verify.right > 0 && verify.wrong == 0, "{verify:?}");
        assert!(result.read_latency_us.unwrap().p50 > 0.0);
        assert!(result.iops > 0.9 * (result.read_iops + result.write_iops));
    }
}

#[test]
fn large_writes_go_by_r2t_in_pieces() {
    for digests in ["none", "both"] {
        let result = load(Fault::None, &format!("--rw write --bs 32k --qd 1 --verify --digests {digests}")).unwrap();
        assert!(result.write_iops > 0.0 && result.verify.unwrap().right > 0);
    }
}

#[test]
fn queues_and_threads_share_the_range() {
    let result = load(Fault::None, "--rw seqmix --queues 4 --qd 4 --bs 1k --verify").unwrap();
    let verify = result.verify.unwrap();
    assert!(verify.right > 0 && verify.wrong == 0, "{verify:?}");
}

#[test]
fn failed_accesses_are_counted_apart() {
    let result = load(Fault::FailWrites, "--rw randwrite --qd 4 --verify").unwrap();
    assert!(result.errors > 0, "{result:?}");
    assert_eq!(result.errors_by_status.keys().collect::<Vec<_>>(), ["Write Fault (2h/80h)"]);
    assert_eq!(result.verify.as_ref().unwrap().wrong, 0, "a failed write may have left anything");
    let counted = result.write_latency_us.as_ref().unwrap().count as f64;
    assert!((counted / result.seconds - result.write_iops).abs() < 1.0, "only successes are IOPS");
    assert!(result.trouble().unwrap().contains("Write Fault"));
}

#[test]
fn wrong_data_is_found() {
    for fault in [Fault::FlipBit, Fault::ForgetWrites] {
        let result = load(fault, "--rw randwrite --qd 4 --verify").unwrap();
        let verify = result.verify.as_ref().unwrap();
        assert!(verify.wrong > 0 && verify.right == 0, "{fault:?}: {verify:?}");
        assert!(!verify.examples.is_empty());
        assert!(result.trouble().unwrap().contains("wrong data"));
    }
}

#[test]
fn a_target_that_breaks_the_protocol_ends_the_run() {
    let short = load(Fault::ShortReads, "--rw randread").unwrap_err().to_string();
    assert!(short.contains("3584 bytes"), "{short}");
    let closed = load(Fault::Close, "--rw randread").unwrap_err().to_string();
    assert!(closed.contains("closed") || closed.contains("broke"), "{closed}");
}

#[test]
fn limits_of_the_target_are_explained() {
    for (options, word) in [
        ("--bs 256k", "MDTS"),
        ("--queues 5", "grants 4"),
        ("--size 1M", "--size"),
        ("--nsid 1 --bs 128k --queues 4", "too few"),
    ] {
        let error = load(Fault::None, options).unwrap_err().to_string();
        assert!(error.contains(word), "{options}: {error}");
    }
    let error = load(Fault::None, "--nqn nqn.2024-01.test:other").unwrap_err().to_string();
    assert!(error.contains("is the NQN right"), "{error}");
}

#[test]
fn the_second_load_has_the_changed_options() {
    let line = "--array --level raid5 --core 0 --vs level=raid6 --vs core=0,1";
    let command = std::iter::once("raidbench").chain(line.split(' ')).map(str::to_owned).collect();
    let other = vs::changed(&parse(line), command).unwrap().unwrap();
    assert_eq!(other.level, Level::Raid6);
    assert_eq!(other.core, [0, 1]);
    assert!(matches!(vs::changed(&parse("--array --vs nothing"), vec!["raidbench".into()]), Err(Failure::Usage(_))));
    assert!(vs::changed(&parse("--array"), vec![]).unwrap().is_none());
}

fn parse(options: &str) -> LoadArgs {
    Cli::try_parse_from(std::iter::once("raidbench").chain(options.split_whitespace())).unwrap().load
}

#[test]
fn the_array_options_reach_raidd_as_numbers() {
    let arguments = array::arguments(&parse("--array --bs 64k --chunk 1M --time 200ms --core 0,1 --size 1G")).join(" ");
    for part in ["--bs 65536", "--chunk 1048576", "--time 0.2 ", "--core 0,1", "--size 1073741824"] {
        assert!(arguments.contains(part), "{part} in {arguments}");
    }
}
