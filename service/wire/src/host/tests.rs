use super::*;
use crate::command::io;
use crate::tcp::{CapsuleResp, flags};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NSID: u32 = 1;
const BLOCK: usize = 512;
const MAX_IN_CAPSULE: u32 = 4096;

/// What a test controller does.
#[derive(Debug, Clone, Copy)]
struct Behavior {
    digests: Digests,
    cpda: u8,
    maxh2cdata: u32,
    /// Bytes of one R2T at most.
    r2t: u32,
    /// Bytes of one C2HData at most.
    c2h: u32,
    /// Reads end with SUCCESS instead of a response.
    success: bool,
    /// Damages the digest of every so many-th C2HData; 0 never.
    damage: u32,
}

struct Write {
    sqe: Sqe,
    len: u32,
    data: Vec<u8>,
    asked: u32,
}

/// A correct controller over an array of bytes, itself built on [`Framer`].
struct Controller {
    behavior: Behavior,
    framer: Framer,
    hpda: u8,
    media: Vec<u8>,
    writes: BTreeMap<u16, Write>,
    receiving: Option<u16>,
    inbox: Vec<u8>,
    out: Vec<u8>,
    sent_data: u32,
}

impl Controller {
    fn new(behavior: Behavior, media: usize) -> Controller {
        Controller {
            behavior,
            framer: Framer::new(Params::new(Direction::ToController, 8192, behavior.maxh2cdata)),
            hpda: 0,
            media: vec![0; media],
            writes: BTreeMap::new(),
            receiving: None,
            inbox: Vec::new(),
            out: Vec::new(),
            sent_data: 0,
        }
    }

    fn push(&mut self, header: &[u8], payload: &[u8]) {
        let digests = self.behavior.digests;
        let start = self.out.len();
        self.out.extend(header);
        if digests.header {
            self.out.extend(digest::wire(header));
        }
        if payload.is_empty() {
            return;
        }
        self.out.resize(start + data_offset(header.len(), digests, self.hpda), 0);
        self.out.extend(payload);
        if digests.data {
            self.sent_data += 1;
            let mut value = digest::wire(payload);
            value[0] ^= u8::from(self.behavior.damage > 0 && self.sent_data.is_multiple_of(self.behavior.damage));
            self.out.extend(value);
        }
    }

    fn respond(&mut self, cid: u16, status: Status) {
        let resp = CapsuleResp::new(Cqe::new(cid, 0, status), self.behavior.digests);
        self.push(resp.as_bytes(), &[]);
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.inbox.extend(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        let mut framer = self.framer.clone();
        loop {
            let (used, event) = framer.next(&inbox[at..]).expect("a correct host");
            at += used;
            match event {
                Event::NeedMore(_) => break,
                Event::Pdu { header: Header::ICReq(req), .. } => {
                    let b = self.behavior;
                    assert_eq!(Digests::from_dgst(req.dgst), b.digests);
                    self.out.extend(ICResp::new(b.cpda, b.digests, b.maxh2cdata).as_bytes());
                    self.hpda = req.hpda;
                    framer.establish(b.digests, b.cpda);
                }
                Event::Pdu { header: Header::CapsuleCmd(capsule), data, digest_ok } => {
                    assert!(digest_ok);
                    self.command(capsule.sqe, data);
                }
                Event::Data(Header::H2CData(data)) => {
                    let write = &self.writes[&data.cccid.get()];
                    assert_eq!(
                        (data.ttag.get(), data.datao.get() as usize),
                        (data.cccid.get() ^ 0x5555, write.data.len())
                    );
                    assert!(data.datal.get() <= self.behavior.maxh2cdata);
                    assert_eq!(data.is_last(), data.datao.get() + data.datal.get() == write.asked);
                    self.receiving = Some(data.cccid.get());
                }
                Event::Payload(len) => {
                    let now = &inbox[at..(at + len).min(inbox.len())];
                    if now.is_empty() {
                        break;
                    }
                    framer.received(now);
                    at += now.len();
                    let cid = self.receiving.expect("a header came");
                    self.writes.get_mut(&cid).expect("a write").data.extend(now);
                }
                Event::DataEnd { digest_ok } => {
                    assert!(digest_ok);
                    let cid = self.receiving.take().expect("a header came");
                    self.go_on(cid);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        self.framer = framer;
        self.inbox = inbox[at..].to_vec();
    }

    fn command(&mut self, sqe: Sqe, in_capsule: &[u8]) {
        let cid = sqe.cid.get();
        let start = sqe.slba() as usize * BLOCK;
        let len = sqe.blocks() as usize * BLOCK;
        match sqe.opcode {
            io::FLUSH => self.respond(cid, Status::SUCCESS),
            _ if start + len > self.media.len() => self.respond(cid, Status::LBA_OUT_OF_RANGE.dnr()),
            io::WRITE if sqe.sgl.is_in_capsule() => {
                assert_eq!(in_capsule.len(), len);
                self.media[start..start + len].copy_from_slice(in_capsule);
                self.respond(cid, Status::SUCCESS);
            }
            io::WRITE => {
                assert_eq!(sqe.sgl, Sgl::transport(len as u32));
                self.writes.insert(cid, Write { sqe, len: len as u32, data: Vec::new(), asked: 0 });
                self.go_on(cid);
            }
            io::READ => {
                let data = self.media[start..start + len].to_vec();
                let mut at = 0;
                for piece in data.chunks(self.behavior.c2h as usize) {
                    let last = at + piece.len() == len;
                    let mut bits = if last { flags::LAST_PDU } else { 0 };
                    if last && self.behavior.success {
                        bits |= flags::SUCCESS;
                    }
                    let header =
                        C2HData::new(cid, at as u32, piece.len() as u32, bits, self.behavior.digests, self.hpda);
                    self.push(header.as_bytes(), piece);
                    at += piece.len();
                }
                if !self.behavior.success {
                    self.respond(cid, Status::SUCCESS);
                }
            }
            other => panic!("opcode {other:02x}h"),
        }
    }

    /// Asks for the next part of a write's data, or completes it.
    fn go_on(&mut self, cid: u16) {
        let write = self.writes.get_mut(&cid).expect("a write");
        if write.data.len() < write.asked as usize {
            return;
        }
        if write.asked < write.len {
            let now = self.behavior.r2t.min(write.len - write.asked);
            let header = R2T::new(cid, cid ^ 0x5555, write.asked, now, self.behavior.digests);
            write.asked += now;
            self.push(header.as_bytes(), &[]);
            return;
        }
        let write = self.writes.remove(&cid).expect("a write");
        let start = write.sqe.slba() as usize * BLOCK;
        self.media[start..start + write.data.len()].copy_from_slice(&write.data);
        self.respond(cid, Status::SUCCESS);
    }
}

/// A host queue, its users' buffers by tag, and a controller, joined by pipes that deliver `chunk` bytes at a time.
struct Pair {
    queue: HostQueue,
    controller: Controller,
    buffers: BTreeMap<u64, Vec<u8>>,
    inbox: Vec<u8>,
    done: Vec<(u64, Cqe)>,
    chunk: usize,
}

impl Pair {
    fn new(behavior: Behavior, depth: u16, hpda: u8, chunk: usize) -> Pair {
        let config = HostConfig { depth, digests: behavior.digests, hpda, max_in_capsule: MAX_IN_CAPSULE };
        let mut pair = Pair {
            queue: HostQueue::new(config),
            controller: Controller::new(behavior, 1 << 18),
            buffers: BTreeMap::new(),
            inbox: Vec::new(),
            done: Vec::new(),
            chunk,
        };
        assert_eq!(pair.queue.submit(Sqe::flush(0, NSID), Data::None, 0), Err(SubmitError::NotReady));
        while !pair.queue.is_ready() {
            pair.turn().unwrap();
        }
        pair
    }

    /// One partial send, one partial receive.
    fn turn(&mut self) -> Result<(), HostError> {
        let buffers = &self.buffers;
        let mut slices = [IoSlice::new(&[]); 5];
        let count = self.queue.gather(|tag| &buffers[&tag], &mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).take(self.chunk).collect();
        self.queue.sent(bytes.len());
        self.controller.receive(&bytes);
        let now = self.controller.out.len().min(self.chunk);
        self.inbox.extend(self.controller.out.drain(..now));
        self.receive()
    }

    fn receive(&mut self) -> Result<(), HostError> {
        let mut at = 0;
        loop {
            let (used, event) = self.queue.next(&self.inbox[at..])?;
            at += used;
            match event {
                HostEvent::NeedMore(need) => {
                    assert!(need <= HostQueue::MAX_NEED && need > self.inbox.len() - at);
                    break;
                }
                HostEvent::Connected => {}
                HostEvent::Payload { tag, offset, len } => {
                    let now = len.min(self.inbox.len() - at);
                    if now == 0 {
                        break;
                    }
                    let chunk = &self.inbox[at..at + now];
                    self.buffers.get_mut(&tag).expect("a read")[offset as usize..][..now].copy_from_slice(chunk);
                    self.queue.received(chunk);
                    at += now;
                }
                HostEvent::Completion { tag, cqe } => self.done.push((tag, cqe)),
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }

    fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.turn().expect("a correct controller");
        }
    }

    fn write(&mut self, tag: u64, slba: u64, data: Vec<u8>) {
        let blocks = (data.len() / BLOCK) as u32;
        let len = data.len() as u32;
        self.buffers.insert(tag, data);
        self.queue.submit(Sqe::write(0, NSID, slba, blocks, 0), Data::Write(len), tag).unwrap();
    }

    fn read(&mut self, tag: u64, slba: u64, blocks: u32) {
        let len = blocks * BLOCK as u32;
        self.buffers.insert(tag, vec![0xee; len as usize]);
        self.queue.submit(Sqe::read(0, NSID, slba, blocks, 0), Data::Read(len), tag).unwrap();
    }

    /// Feeds the host raw bytes, as a hostile controller would.
    fn hostile(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        self.inbox.extend(bytes);
        self.receive()
    }

    /// Sends everything without the controller seeing it.
    fn send_to_nobody(&mut self) {
        let buffers = &self.buffers;
        let mut slices = [IoSlice::new(&[]); 64];
        let count = self.queue.gather(|tag| &buffers[&tag], &mut slices);
        let len = slices[..count].iter().map(|s| s.len()).sum();
        self.queue.sent(len);
    }

    fn cid(&self, tag: u64) -> u16 {
        let index = self.queue.slots.iter().position(|s| s.busy && s.tag == tag).expect("in flight");
        index as u16 | self.queue.slots[index].generation << self.queue.index_bits
    }
}

const PLAIN: Behavior = Behavior {
    digests: Digests { header: false, data: false },
    cpda: 0,
    maxh2cdata: 8192,
    r2t: 65536,
    c2h: 65536,
    success: true,
    damage: 0,
};

fn behavior() -> impl Strategy<Value = Behavior> {
    (any::<(bool, bool, bool)>(), 0u8..32, 1u32..5, 1u32..40, 1u32..40).prop_map(
        |((header, data, success), cpda, max, r2t, c2h)| Behavior {
            digests: Digests { header, data },
            cpda,
            maxh2cdata: max * 4096,
            r2t: r2t * 512,
            c2h: c2h * 1024,
            success,
            damage: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random commands at depth, over pipes that cut anywhere: every byte ends where it belongs.
    #[test]
    fn reads_return_what_writes_wrote(
        behavior in behavior(), hpda in 0u8..32, depth in 1u16..9, chunk in 1usize..20_000, seed in any::<u64>(),
        commands in proptest::collection::vec((0u8..4, 0u64..32, 1u32..40), 1..30),
    ) {
        let mut pair = Pair::new(behavior, depth, hpda, chunk.max(16));
        let mut model = vec![0u8; 1 << 18];
        let mut reads = BTreeMap::new();
        let mut fill = seed;
        for (n, &(kind, place, blocks)) in commands.iter().enumerate() {
            let tag = n as u64 + 1000;
            let start = place as usize * BLOCK;
            let len = blocks as usize * BLOCK;
            match kind {
                0 => {
                    // Writes and reads of the same place do not overlap in flight here: order is not the queue's matter.
                    pair.drain();
                    let data: Vec<u8> = (0..len).map(|i| { fill = fill.wrapping_mul(6364136223846793005).wrapping_add(i as u64 | 1); (fill >> 56) as u8 }).collect();
                    model[start..start + len].copy_from_slice(&data);
                    pair.write(tag, place, data);
                    pair.drain();
                }
                1 => {
                    while pair.queue.room() == 0 { pair.turn().unwrap(); }
                    pair.queue.submit(Sqe::flush(0, NSID), Data::None, tag).unwrap();
                }
                _ => {
                    while pair.queue.room() == 0 { pair.turn().unwrap(); }
                    reads.insert(tag, model[start..start + len].to_vec());
                    pair.read(tag, place, blocks);
                }
            }
        }
        pair.drain();
        prop_assert_eq!(pair.done.len(), commands.len());
        for (tag, cqe) in &pair.done {
            prop_assert!(cqe.status().is_success(), "{tag}: {}", cqe.status());
        }
        for (tag, want) in reads {
            prop_assert!(pair.buffers[&tag] == want, "read {tag}");
        }
        prop_assert!(!pair.queue.has_outgoing());
        prop_assert!(pair.controller.media == model);
    }

    /// Concurrent writes to different places, larger than a capsule, all by R2T.
    #[test]
    fn writes_at_depth_do_not_mix(behavior in behavior(), chunk in 16usize..30_000, count in 1u64..8) {
        let mut pair = Pair::new(behavior, 8, 0, chunk);
        for n in 0..count {
            pair.write(n, n * 40, vec![n as u8 + 1; (20 + n as usize) * BLOCK]);
        }
        pair.drain();
        for n in 0..count as usize {
            let start = n * 40 * BLOCK;
            prop_assert!(pair.controller.media[start..start + (20 + n) * BLOCK].iter().all(|&b| b == n as u8 + 1));
            prop_assert_eq!(pair.controller.media[start + (20 + n) * BLOCK], 0);
        }
    }

    /// Garbage from the controller never panics and never places data anywhere but in the read that is in flight.
    #[test]
    fn garbage_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..600), pick in 0u8..6, digests in any::<bool>(),
    ) {
        let behavior = Behavior { digests: Digests { header: false, data: digests }, ..PLAIN };
        let mut pair = Pair::new(behavior, 4, 0, 1 << 20);
        pair.read(1, 0, 1);
        pair.write(2, 0, vec![1; 16 * BLOCK]);
        pair.send_to_nobody();
        let mut bytes = bytes;
        if bytes.len() > 24 {
            // A believable start, so that the deeper checks are reached.
            let cid = pair.cid(1 + u64::from(pick & 1));
            let len = u32::from(bytes[9]) * 8;
            let head = match pick / 2 {
                0 => C2HData::new(cid, 0, len.max(1), 12, behavior.digests, 0).as_bytes().to_vec(),
                1 => R2T::new(cid, 0, 0, len * 16, behavior.digests).as_bytes().to_vec(),
                _ => CapsuleResp::new(Cqe::new(cid, 0, Status::INTERNAL_ERROR), behavior.digests).as_bytes().to_vec(),
            };
            bytes[..head.len()].copy_from_slice(&head);
        }
        let _ = pair.hostile(&bytes);
    }
}

#[test]
fn a_wrong_data_digest_fails_only_its_command() {
    let digests = Digests { header: false, data: true };
    for success in [false, true] {
        let mut pair = Pair::new(Behavior { digests, damage: 2, success, ..PLAIN }, 4, 0, 1000);
        for tag in 0..4 {
            pair.read(tag, tag, 1);
        }
        pair.drain();
        let failed: Vec<_> = pair.done.iter().filter(|(_, c)| c.status().is(Status::DATA_TRANSFER_ERROR)).collect();
        assert_eq!(failed.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(pair.done.len(), 4);
    }
}

#[test]
fn errors_of_commands_are_completions() {
    let mut pair = Pair::new(PLAIN, 2, 0, 1 << 20);
    pair.read(5, 1 << 40, 1);
    pair.write(6, 1 << 40, vec![0; 64 * BLOCK]);
    assert_eq!(pair.queue.submit(Sqe::flush(0, NSID), Data::None, 7), Err(SubmitError::Full));
    assert_eq!(pair.queue.tags().collect::<Vec<_>>(), [5, 6]);
    pair.drain();
    for (_, cqe) in &pair.done {
        assert_eq!(cqe.status(), Status::LBA_OUT_OF_RANGE.dnr());
    }
    assert_eq!(pair.done.len(), 2);
}

/// What a controller may never do. Tag 1 is a read of 8 blocks, 2 a write by R2T of 16, 3 a write in the capsule, 4 a
/// flush; all capsules have been sent.
#[test]
fn each_breach_ends_the_connection() {
    fn check(name: &str, want: FatalError, bytes: impl Fn(&Pair) -> Vec<u8>) {
        let mut pair = Pair::new(PLAIN, 8, 0, 1 << 20);
        pair.read(1, 0, 8);
        pair.write(2, 0, vec![1; 16 * BLOCK]);
        pair.write(3, 0, vec![1; BLOCK]);
        pair.queue.submit(Sqe::flush(0, NSID), Data::None, 4).unwrap();
        pair.send_to_nobody();
        let bytes = bytes(&pair);
        match pair.hostile(&bytes) {
            Err(HostError::Protocol { error, .. }) => assert_eq!(error, want, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        assert!(pair.done.iter().all(|(tag, _)| *tag != 1 || name == "completed twice"), "{name}");
    }
    let none = Digests::default();
    let data = |cid, at, len, bits| {
        let mut out = C2HData::new(cid, at, len, bits, none, 0).as_bytes().to_vec();
        out.resize(24 + len as usize, 0);
        out
    };
    let ask = |cid, at, len| R2T::new(cid, 9, at, len, none).as_bytes().to_vec();
    let answer = |cid| CapsuleResp::new(Cqe::new(cid, 0, Status::SUCCESS), none).as_bytes().to_vec();
    let last = flags::LAST_PDU;
    let success = flags::LAST_PDU | flags::SUCCESS;
    let range = FatalError::OUT_OF_RANGE;

    check("unknown CID", FatalError::BAD_CCCID, |_| answer(0xfff0));
    check("CID of a free slot", FatalError::BAD_CCCID, |_| answer(6));
    check("CID of an older generation", FatalError::BAD_CCCID, |p| answer(p.cid(4) ^ 1 << 15));
    check("completed twice", FatalError::BAD_CCCID, |p| [answer(p.cid(4)), answer(p.cid(4))].concat());
    check("data for an unknown CID", FatalError::BAD_CCCID, |_| data(0xfff0, 0, 512, last));
    check("data for a write", FatalError::BAD_CCCID, |p| data(p.cid(2), 0, 512, last));
    check("data for a flush", FatalError::BAD_CCCID, |p| data(p.cid(4), 0, 512, last));
    check("data out of order", FatalError::BAD_DATAO, |p| data(p.cid(1), 512, 512, last));
    check("data twice", FatalError::BAD_DATAO, |p| [data(p.cid(1), 0, 512, 0), data(p.cid(1), 0, 512, 0)].concat());
    check("too much data", range, |p| data(p.cid(1), 0, 4100, last));
    check("too much data, later", range, |p| [data(p.cid(1), 0, 4096, 0), data(p.cid(1), 4096, 4, last)].concat());
    check("success with too little data", range, |p| data(p.cid(1), 0, 512, success));
    check("response with too little data", range, |p| [data(p.cid(1), 0, 512, last), answer(p.cid(1))].concat());
    check("response without data", range, |p| answer(p.cid(1)));
    check("SUCCESS without LAST_PDU", FatalError::field(1), |p| data(p.cid(1), 0, 4096, flags::SUCCESS));
    check("success of a write before its R2T", range, |p| answer(p.cid(2)));
    check("R2T beyond the data", range, |p| ask(p.cid(2), 0, 16 * 512 + 4));
    check("R2T not at the start", range, |p| ask(p.cid(2), 512, 512));
    check("R2T of length 0", FatalError::field(16), |p| ask(p.cid(2), 0, 0));
    check("two R2Ts open", FatalError::LIMIT, |p| [ask(p.cid(2), 0, 512), ask(p.cid(2), 512, 512)].concat());
    check("success while an R2T is open", FatalError::SEQUENCE, |p| {
        [ask(p.cid(2), 0, 8192), answer(p.cid(2))].concat()
    });
    check("R2T for a read", FatalError::BAD_CCCID, |p| ask(p.cid(1), 0, 512));
    check("R2T for data in the capsule", FatalError::BAD_CCCID, |p| ask(p.cid(3), 0, 512));
    check("ICResp again", FatalError::SEQUENCE, |_| ICResp::new(0, none, 4096).as_bytes().to_vec());
    check("a host's PDU", FatalError::field(0), |_| ICReq::new(0, none).as_bytes().to_vec());
}

#[test]
fn a_completion_before_the_capsule_was_sent_is_a_forgery() {
    let mut pair = Pair::new(PLAIN, 8, 0, 1 << 20);
    pair.queue.submit(Sqe::flush(0, NSID), Data::None, 4).unwrap();
    let answer = CapsuleResp::new(Cqe::new(pair.cid(4), 0, Status::SUCCESS), Digests::default());
    assert!(matches!(pair.hostile(answer.as_bytes()), Err(HostError::Protocol { error: FatalError::BAD_CCCID, .. })));
}

/// The buffer of a write that failed early is still being sent from: its completion must wait, or the user would change it.
#[test]
fn a_failed_write_completes_after_its_data_has_left() {
    let mut pair = Pair::new(PLAIN, 8, 0, 1 << 20);
    pair.write(2, 0, vec![1; 16 * BLOCK]);
    pair.send_to_nobody();
    let cid = pair.cid(2);
    pair.hostile(R2T::new(cid, 9, 0, 8192, Digests::default()).as_bytes()).unwrap();
    let failed = CapsuleResp::new(Cqe::new(cid, 0, Status::INTERNAL_ERROR), Digests::default());
    pair.hostile(failed.as_bytes()).unwrap();
    assert!(pair.done.is_empty());
    pair.queue.sent(24 + 8191);
    pair.receive().unwrap();
    assert!(pair.done.is_empty());
    pair.queue.sent(1);
    pair.receive().unwrap();
    assert_eq!(pair.done.len(), 1);
    assert_eq!((pair.done[0].0, pair.done[0].1.status()), (2, Status::INTERNAL_ERROR));
    assert_eq!(pair.queue.in_flight(), 0);
}

#[test]
fn termination_and_wrong_digests_are_named() {
    let mut pair = Pair::new(PLAIN, 8, 0, 1 << 20);
    let (bytes, len) = FatalError::field(4).term_req(Direction::ToHost, &[0; 72]);
    let error = pair.hostile(&bytes[..len]).unwrap_err();
    assert_eq!(error, HostError::Terminated { fes: 1, fei: 4 });
    assert_eq!(
        error.to_string(),
        "the controller terminated the connection: Invalid PDU Header Field (information 4h)"
    );

    let asked = Digests { header: true, data: true };
    let mut queue = HostQueue::new(HostConfig { digests: asked, ..HostConfig::admin(asked) });
    let answered = Digests { header: true, data: false };
    assert_eq!(
        queue.next(ICResp::new(0, answered, 4096).as_bytes()),
        Err(HostError::DigestMismatch { asked, answered })
    );
}

#[test]
fn connect_goes_in_the_capsule() {
    for digests in [Digests::default(), Digests { header: true, data: true }] {
        let config = HostConfig { max_in_capsule: 0, depth: 127, digests, hpda: 0 };
        let mut queue = HostQueue::new(config);
        queue.sent(128);
        queue.next(ICResp::new(3, digests, 4096).as_bytes()).unwrap();
        let data = ConnectData::new([1; 16], 5, "nqn.2026-01.org.example:s", "nqn.2026-01.org.example:h");
        queue.connect(2, 0, &data, 77).unwrap();
        let bytes: Vec<u8> = queue
            .outgoing()
            .flat_map(|o| match o {
                Outgoing::Bytes(b) => b.to_vec(),
                Outgoing::Payload { .. } => panic!("Connect has no payload of the caller"),
            })
            .collect();
        let mut framer = Framer::new(Params::new(Direction::ToController, 8192, 4096));
        framer.establish(digests, 3);
        let (used, event) = framer.next(&bytes).unwrap();
        assert_eq!(used, bytes.len());
        let Event::Pdu { header: Header::CapsuleCmd(capsule), data: got, digest_ok: true } = event else {
            panic!("{event:?}");
        };
        assert_eq!(ConnectData::parse(got), Some(&data));
        let cmd = capsule.sqe.as_connect();
        assert_eq!((cmd.qid.get(), cmd.sqsize.get()), (2, 127));
        // Inline data of other commands is bounded by IOCCSZ.
        assert_eq!(queue.submit_inline(Sqe::dataset_management(0, 1, 1, 4), &[0; 16], 1), Err(SubmitError::TooLarge));
        queue.set_max_in_capsule(16);
        assert_eq!(queue.submit_inline(Sqe::dataset_management(0, 1, 1, 4), &[0; 16], 1), Ok(()));
    }
}

/// No CID repeats while older ones of the slot could still be on their way, and none is FFFFh.
#[test]
fn cids_name_one_use_of_a_slot() {
    for depth in [1, 2, 128, 1000, MAX_DEPTH] {
        let mut queue = HostQueue::new(HostConfig { depth, digests: Digests::default(), hpda: 0, max_in_capsule: 0 });
        queue.ready = true;
        let mut previous = vec![None; usize::from(depth)];
        for n in 0..200_000u64.min(u64::from(depth) * 20) {
            let (slot, cid) = queue.claim(n, Data::None).unwrap();
            assert_ne!(cid, 0xffff);
            assert_ne!(previous[usize::from(slot)], Some(cid));
            previous[usize::from(slot)] = Some(cid);
            queue.framer.establish(Digests::default(), 0);
            assert_eq!(queue.find(cid).unwrap(), slot);
            queue.finish(slot, Cqe::new(cid, 0, Status::SUCCESS));
        }
    }
}

/// Once warm the outbox and the slots keep their size: nothing is allocated per I/O.
#[test]
fn warm_queues_do_not_grow() {
    let mut pair = Pair::new(PLAIN, 8, 0, 1 << 20);
    let mut sizes = Vec::new();
    for round in 0..50 {
        for tag in 0..4 {
            pair.read(tag, tag * 8, 8);
            pair.write(tag + 4, tag * 40, vec![1; 40 * BLOCK]);
        }
        pair.drain();
        if round >= 5 {
            sizes.push(pair.queue.outbox.capacities());
        }
    }
    assert!(sizes.windows(2).all(|w| w[0] == w[1]), "{sizes:?}");
}
