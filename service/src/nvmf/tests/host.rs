//! A host that speaks the protocol over a blocking socket, one PDU at a time, and checks all that it gets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nvme_wire::command::{Cqe, Sgl, Sqe, Status, admin};
use nvme_wire::fabrics::{Cc, ConnectCmd, ConnectData, PropertyCmd, cattr, property};
use nvme_wire::tcp::{
    CapsuleCmd, CommonHeader, Digests, Direction, H2CData, Header, ICReq, Params, PduType, check, check_common, digest,
};
use nvme_wire::zerocopy::{FromBytes, IntoBytes};

pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
pub const HOST_ID: [u8; 16] = [7; 16];

/// One PDU: header without its digest, and data.
#[derive(Debug)]
pub struct Pdu {
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn header(&self) -> Header<'_> {
        Header::parse(&self.header).expect("a known PDU")
    }

    pub fn kind(&self) -> PduType {
        PduType::from_u8(self.header[0]).unwrap()
    }
}

/// One queue.
pub struct Host {
    pub socket: TcpStream,
    pub digests: Digests,
    pub hpda: u8,
    pub max_h2c_data: u32,
    params: Params,
    next_cid: u16,
    pub heads: Vec<u16>,
    /// Reads that were completed by SUCCESS, without a response.
    pub short_cuts: usize,
}

pub fn digests(header: bool, data: bool) -> Digests {
    Digests { header, data }
}

impl Host {
    /// A connection without the exchange of ICReq and ICResp.
    pub fn raw(addr: SocketAddr) -> Host {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Host {
            socket,
            digests: Digests::default(),
            hpda: 0,
            max_h2c_data: 0,
            params: Params::new(Direction::ToHost, 0, 1 << 30),
            next_cid: 100,
            heads: Vec::new(),
            short_cuts: 0,
        }
    }

    /// A connection that is ready for Connect.
    pub fn new(addr: SocketAddr, digests: Digests, hpda: u8) -> Host {
        let mut host = Host::raw(addr);
        host.socket.write_all(ICReq::new(hpda, digests).as_bytes()).unwrap();
        let pdu = host.receive().expect("an ICResp");
        let Header::ICResp(resp) = pdu.header() else { panic!("{pdu:?} is not an ICResp") };
        assert_eq!(resp.dgst, digests.to_dgst(), "digests other than asked for");
        assert_eq!(resp.cpda, 0);
        host.max_h2c_data = resp.maxh2cdata.get();
        assert!(host.max_h2c_data >= 128 << 10 && host.max_h2c_data.is_multiple_of(4));
        host.params.established = true;
        host.params.digests = digests;
        host.params.pda = hpda;
        (host.digests, host.hpda) = (digests, hpda);
        host
    }

    /// The admin queue of a new controller, enabled, as Linux does it.
    pub fn admin(addr: SocketAddr, nqn: &str, digests: Digests, kato: u32) -> (Host, u16) {
        let mut host = Host::new(addr, digests, 0);
        let cqe = host.connect(0, 32, 0xFFFF, nqn, HOST_NQN, kato, 0);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let cntlid = cqe.dw0.get() as u16;
        host.enable();
        (host, cntlid)
    }

    /// An I/O queue.
    pub fn queue(addr: SocketAddr, nqn: &str, cntlid: u16, qid: u16, digests: Digests) -> Host {
        let mut host = Host::new(addr, digests, 0);
        let cqe = host.connect(qid, 128, cntlid, nqn, HOST_NQN, 0, 0);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        host
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the command")]
    pub fn connect(
        &mut self,
        qid: u16,
        entries: u32,
        cntlid: u16,
        nqn: &str,
        host_nqn: &str,
        kato: u32,
        attributes: u8,
    ) -> Cqe {
        let mut cmd = ConnectCmd::new(self.cid(), qid, entries, kato);
        cmd.cattr = attributes;
        let data = ConnectData::new(HOST_ID, cntlid, nqn, host_nqn);
        self.command(cmd.into(), data.as_bytes(), 0).0
    }

    pub fn connect_without_flow_control(&mut self, qid: u16, cntlid: u16, nqn: &str) {
        let cqe = self.connect(qid, 128, cntlid, nqn, HOST_NQN, 0, cattr::DISABLE_SQ_FLOW_CONTROL);
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }

    pub fn get(&mut self, ofst: u32) -> u64 {
        let cid = self.cid();
        let cqe = self.command(PropertyCmd::get(cid, ofst).into(), &[], 0).0;
        assert!(cqe.status().is_success(), "{}", cqe.status());
        cqe.result()
    }

    pub fn set(&mut self, ofst: u32, value: u64) {
        let cid = self.cid();
        let cqe = self.command(PropertyCmd::set(cid, ofst, value).into(), &[], 0).0;
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }

    pub fn enable(&mut self) {
        self.get(property::CAP);
        self.set(property::CC, 0);
        let cc = Cc { en: true, css: 6, iosqes: 6, iocqes: 4, ..Cc::default() };
        self.set(property::CC, u64::from(cc.to_u32()));
        assert_eq!(self.get(property::CSTS) & 1, 1, "ready");
    }

    pub fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    pub fn identify(&mut self, cns: u8, nsid: u32) -> Result<Vec<u8>, Status> {
        let mut sqe = Sqe::new(admin::IDENTIFY, self.cid(), nsid);
        sqe.cdw10 = u32::from(cns).into();
        self.fetch(sqe, 4096)
    }

    pub fn log(&mut self, lid: u8, offset: u64, len: u32) -> Result<Vec<u8>, Status> {
        let mut sqe = Sqe::new(admin::GET_LOG_PAGE, self.cid(), 0xFFFF_FFFF);
        sqe.cdw10 = (u32::from(lid) | (len / 4 - 1) << 16).into();
        sqe.cdw12 = (offset as u32).into();
        self.fetch(sqe, len)
    }

    /// A command that gives data.
    pub fn fetch(&mut self, mut sqe: Sqe, len: u32) -> Result<Vec<u8>, Status> {
        sqe.sgl = Sgl::transport(len);
        let (cqe, data) = self.command(sqe, &[], len as usize);
        if cqe.status().is_success() { Ok(data) } else { Err(cqe.status()) }
    }

    pub fn read(&mut self, slba: u64, blocks: u32, len: u32) -> Result<Vec<u8>, Status> {
        let sqe = Sqe::read(self.cid(), 1, slba, blocks, 0);
        self.fetch(sqe, len)
    }

    pub fn write(&mut self, slba: u64, blocks: u32, data: &[u8]) -> Status {
        let sqe = Sqe::write(self.cid(), 1, slba, blocks, 0);
        self.give(sqe, data)
    }

    /// A command that takes data: in the capsule up to 8 KiB, by R2T above.
    pub fn give(&mut self, mut sqe: Sqe, data: &[u8]) -> Status {
        if data.len() > 8192 {
            sqe.sgl = Sgl::transport(data.len() as u32);
        } else {
            sqe.sgl = Sgl::in_capsule(data.len() as u32);
        }
        self.command(sqe, data, 0).0.status()
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Header, its digest, padding, data, its digest.
    pub fn encode(&self, header: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = header.to_vec();
        if self.digests.header {
            out.extend_from_slice(&digest::wire(header));
        }
        if !data.is_empty() {
            out.resize(usize::from(header[3]), 0);
            out.extend_from_slice(data);
            if self.digests.data {
                out.extend_from_slice(&digest::wire(data));
            }
        }
        out
    }

    pub fn submit(&mut self, sqe: Sqe, in_capsule: &[u8]) {
        let capsule = CapsuleCmd::new(sqe, in_capsule.len() as u32, self.digests, 0);
        let bytes = self.encode(capsule.as_bytes(), in_capsule);
        self.send_raw(&bytes);
    }

    /// One command, alone on the queue.
    pub fn command(&mut self, sqe: Sqe, give: &[u8], take: usize) -> (Cqe, Vec<u8>) {
        let in_capsule = sqe.sgl.is_in_capsule();
        self.submit(sqe, if in_capsule { give } else { &[] });
        let mut taken = vec![0; take];
        let mut got = 0;
        loop {
            let pdu = self.receive().expect("an answer");
            match pdu.header() {
                Header::CapsuleResp(resp) => {
                    assert_eq!(resp.cqe.cid.get(), sqe.cid.get(), "an answer to another command");
                    if resp.cqe.status().is_success() && take > 0 {
                        assert_eq!(got, take, "less data than asked for");
                    }
                    self.heads.push(resp.cqe.sqhd.get());
                    return (resp.cqe, taken);
                }
                Header::C2HData(data) => {
                    assert_eq!(data.cccid.get(), sqe.cid.get());
                    let at = data.datao.get() as usize;
                    assert_eq!(at, got, "data out of order");
                    taken[at..at + pdu.data.len()].copy_from_slice(&pdu.data);
                    got += pdu.data.len();
                    if data.is_success() {
                        assert_eq!(got, take, "less data than asked for");
                        self.short_cuts += 1;
                        return (Cqe::new(sqe.cid.get(), 0xFFFF, Status::SUCCESS), taken);
                    }
                }
                Header::R2T(r2t) => {
                    assert_eq!(r2t.cccid.get(), sqe.cid.get());
                    assert!(!in_capsule, "an R2T for in-capsule data");
                    let (at, len) = (r2t.r2to.get() as usize, r2t.r2tl.get() as usize);
                    self.answer(sqe.cid.get(), r2t.ttag.get(), &give[at..at + len], at, 1 << 20);
                }
                _ => panic!("{pdu:?} was not expected"),
            }
        }
    }

    /// Sends the data that an R2T asked for, in PDUs of at most `step` bytes.
    pub fn answer(&mut self, cid: u16, ttag: u16, data: &[u8], at: usize, step: usize) {
        let step = step.min(self.max_h2c_data as usize);
        let mut sent = 0;
        for part in data.chunks(step) {
            let last = sent + part.len() == data.len();
            let header = H2CData::new(cid, ttag, (at + sent) as u32, part.len() as u32, last, self.digests, 0);
            let bytes = self.encode(header.as_bytes(), part);
            self.send_raw(&bytes);
            sent += part.len();
        }
    }

    /// The next PDU, checked; `None` when the target has closed.
    pub fn receive(&mut self) -> Option<Pdu> {
        let mut common = [0; 8];
        match self.socket.read_exact(&mut common) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset) => {
                return None;
            }
            Err(e) => panic!("no PDU came: {e}"),
        }
        let (ch, _) = CommonHeader::ref_from_prefix(&common).unwrap();
        let layout = check_common(ch, &self.params).expect("a good header");
        let mut rest = vec![0; layout.len() - 8];
        self.socket.read_exact(&mut rest).unwrap();
        let mut pdu = common.to_vec();
        pdu.extend_from_slice(&rest);
        check(&pdu, &self.params).expect("a good header");
        if layout.header_digest {
            let received = digest::read(&pdu[layout.header_len..]).unwrap();
            assert_eq!(received, digest::crc32c(&pdu[..layout.header_len]), "header digest");
        }
        let data = pdu[layout.data_offset..layout.data_offset + layout.data_len].to_vec();
        if layout.data_digest {
            let received = digest::read(&pdu[layout.data_offset + layout.data_len..]).unwrap();
            assert_eq!(received, digest::crc32c(&data), "data digest");
        }
        Some(Pdu { header: pdu[..layout.header_len].to_vec(), data })
    }

    /// Expects a C2HTermReq with this status and information, and then the end.
    pub fn expect_termination(&mut self, fes: u16, fei: u32) {
        loop {
            let pdu = self.receive().expect("a C2HTermReq before the end");
            if let Header::TermReq(term) = pdu.header() {
                assert_eq!((term.fes.get(), term.fei.get()), (fes, fei));
                break;
            }
        }
        assert!(self.receive().is_none(), "something came after the C2HTermReq");
    }
}
