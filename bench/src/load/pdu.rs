//! PDUs in the form that a queue's inner loop wants them: sent from where they were encoded, received without a copy.

use nvme_wire::command::{Cqe, Sqe};
use nvme_wire::tcp::{C2HData, CapsuleCmd, DIGEST_LEN, Digests, Event, Framer, H2CData, Header, R2T, TermReq, digest};
use nvme_wire::zerocopy::IntoBytes;

/// The longest header that is sent: a command capsule's.
const HEAD: usize = size_of::<CapsuleCmd>() + DIGEST_LEN;

/// A PDU to send: its header and digest in place, and which bytes of the queue's buffers follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    head: [u8; HEAD],
    head_len: u8,
    /// Offset and length in the queue's buffers.
    data: (usize, usize),
    tail: [u8; DIGEST_LEN],
    tail_len: u8,
}

impl Outgoing {
    /// A command, with data inside its capsule if there is any.
    pub fn command(sqe: Sqe, digests: Digests, data: (usize, usize), buffers: &[u8]) -> Outgoing {
        Outgoing::new(CapsuleCmd::new(sqe, data.1 as u32, digests, 0).as_bytes(), digests, data, buffers)
    }

    /// Data that an R2T asked for.
    pub fn data(header: H2CData, digests: Digests, data: (usize, usize), buffers: &[u8]) -> Outgoing {
        Outgoing::new(header.as_bytes(), digests, data, buffers)
    }

    fn new(header: &[u8], digests: Digests, data: (usize, usize), buffers: &[u8]) -> Outgoing {
        let len = header.len();
        let mut out = Outgoing {
            head: [0; HEAD],
            head_len: (len + digests.header_len()) as u8,
            data,
            tail: [0; DIGEST_LEN],
            tail_len: 0,
        };
        out.head[..len].copy_from_slice(header);
        if digests.header {
            out.head[len..len + DIGEST_LEN].copy_from_slice(&digest::wire(header));
        }
        if digests.data && data.1 > 0 {
            out.tail = digest::wire(&buffers[data.0..data.0 + data.1]);
            out.tail_len = DIGEST_LEN as u8;
        }
        out
    }

    /// Its three parts.
    pub fn parts<'a>(&'a self, buffers: &'a [u8]) -> [&'a [u8]; 3] {
        [
            &self.head[..usize::from(self.head_len)],
            &buffers[self.data.0..self.data.0 + self.data.1],
            &self.tail[..usize::from(self.tail_len)],
        ]
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.head_len) + self.data.1 + usize::from(self.tail_len)
    }
}

/// What came from the target.
#[derive(Debug)]
pub(super) enum Received {
    /// A completion.
    Response(Cqe),
    /// The header of a data PDU; its payload follows.
    Data(C2HData),
    /// The data PDU is complete.
    DataEnd,
    /// The target wants data.
    Wanted(R2T),
}

/// Takes a stream apart, wherever it was cut: a header that has not come in full waits here for its rest.
#[derive(Debug)]
pub(super) struct Receiver {
    framer: Framer,
    kept: [u8; 256],
    len: usize,
    /// The bytes that the framer wants before it can say more.
    need: usize,
}

impl Receiver {
    /// For a stream that is between two PDUs.
    pub fn new(framer: Framer) -> Receiver {
        Receiver { framer, kept: [0; 256], len: 0, need: 0 }
    }

    /// The digests in use.
    pub fn digests(&self) -> Digests {
        self.framer.params().digests
    }

    /// Bytes of payload that are next in the stream.
    pub fn payload_left(&self) -> usize {
        self.framer.payload_left()
    }

    /// These bytes of payload were taken.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.framer.received(bytes);
    }

    /// What is next in the stream, which goes on with `bytes`; takes what it used off their front. Nothing, if more bytes
    /// or a payload have to come first.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Received>, String> {
        loop {
            if self.framer.payload_left() > 0 {
                return Ok(None);
            }
            let kept = self.len > 0;
            if kept {
                let n = (self.need - self.len).min(bytes.len());
                self.kept[self.len..self.len + n].copy_from_slice(&bytes[..n]);
                *bytes = &bytes[n..];
                self.len += n;
                if self.len < self.need {
                    return Ok(None);
                }
            }
            let buffer = if kept { &self.kept[..self.len] } else { *bytes };
            let (used, event) = self.framer.next(buffer).map_err(|e| format!("the target breaks the protocol: {e}"))?;
            let received = match event {
                Event::NeedMore(need) => {
                    // No PDU to a host has a header (with its padding) that would not fit; its data is never kept.
                    self.need = need.min(self.kept.len());
                    if !kept {
                        self.len = bytes.len();
                        self.kept[..self.len].copy_from_slice(bytes);
                        *bytes = &[];
                    }
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    continue;
                }
                Event::Payload(_) => None,
                Event::Data(Header::C2HData(header)) => Some(Received::Data(*header)),
                Event::DataEnd { digest_ok: true } => Some(Received::DataEnd),
                Event::DataEnd { digest_ok: false } => return Err("the digest of received data is wrong".into()),
                Event::Pdu { header: Header::CapsuleResp(response), .. } => Some(Received::Response(response.cqe)),
                Event::Pdu { header: Header::R2T(r2t), .. } => Some(Received::Wanted(*r2t)),
                Event::Pdu { header: Header::TermReq(request), .. } => return Err(terminated(request)),
                Event::Pdu { header, .. } | Event::Data(header) => {
                    return Err(format!(
                        "the target sent a PDU of type {:02x}h, which has no place here",
                        header.common().pdu_type
                    ));
                }
            };
            // What is kept is never more than the framer asked for, so it is used up as a whole or not at all.
            if kept && used > 0 {
                self.len = 0;
            } else if !kept {
                *bytes = &bytes[used..];
            }
            return Ok(received);
        }
    }
}

fn terminated(request: &TermReq) -> String {
    format!(
        "the target ended the connection: fatal error {:02x}h, information {:08x}h",
        request.fes.get(),
        request.fei.get()
    )
}

#[cfg(test)]
mod tests {
    use nvme_wire::command::Status;
    use nvme_wire::tcp::{CapsuleResp, Direction, Params, flags};

    use super::*;

    fn receiver(digests: Digests) -> Receiver {
        let mut framer = Framer::new(Params::new(Direction::ToHost, 0, 4096));
        framer.establish(digests, 0);
        Receiver::new(framer)
    }

    /// A data PDU of 512 bytes and a response, as bytes.
    fn stream(digests: Digests) -> (Vec<u8>, Vec<u8>) {
        let payload: Vec<u8> = (0..512).map(|i| i as u8).collect();
        let data = C2HData::new(7, 0, 512, flags::LAST_PDU, digests, 0);
        let response = CapsuleResp::new(Cqe::new(7, 0, Status::SUCCESS), digests);
        let mut out = vec![];
        for (header, payload) in [(data.as_bytes(), payload.as_slice()), (response.as_bytes(), &[])] {
            out.extend(header);
            if digests.header {
                out.extend(digest::wire(header));
            }
            out.extend(payload);
            if digests.data && !payload.is_empty() {
                out.extend(digest::wire(payload));
            }
        }
        (out, payload)
    }

    #[test]
    fn a_stream_may_be_cut_anywhere() {
        for digests in [Digests::default(), Digests { header: true, data: false }, Digests { header: true, data: true }]
        {
            let (stream, payload) = stream(digests);
            for size in 1..=stream.len() {
                let mut receiver = receiver(digests);
                let (mut seen, mut taken) = (vec![], vec![]);
                for mut bytes in stream.chunks(size) {
                    loop {
                        if let Some(received) = receiver.next(&mut bytes).unwrap() {
                            seen.push(format!("{received:?}").split('(').next().unwrap().to_owned());
                        } else if receiver.payload_left() > 0 && !bytes.is_empty() {
                            let n = receiver.payload_left().min(bytes.len());
                            receiver.payload(&bytes[..n]);
                            taken.extend_from_slice(&bytes[..n]);
                            bytes = &bytes[n..];
                        } else if bytes.is_empty() {
                            break;
                        }
                    }
                }
                assert_eq!(seen, ["Data", "DataEnd", "Response"], "{digests:?}, pieces of {size}");
                assert_eq!(taken, payload);
            }
        }
    }

    #[test]
    fn a_wrong_digest_ends_the_connection() {
        let digests = Digests { header: true, data: true };
        let (good, _) = stream(digests);
        for at in [9, 25, 100, 28 + 512] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let mut receiver = receiver(digests);
            let mut bytes = bad.as_slice();
            let failed = (0..8).any(|_| match receiver.next(&mut bytes) {
                Err(_) => true,
                Ok(_) => {
                    let n = receiver.payload_left().min(bytes.len());
                    receiver.payload(&bytes[..n]);
                    bytes = &bytes[n..];
                    false
                }
            });
            assert!(failed, "bit of byte {at}");
        }
    }

    #[test]
    fn parts_add_up_to_the_length_in_the_header() {
        let buffers: Vec<u8> = (0..=255).collect();
        for digests in [Digests::default(), Digests { header: true, data: true }] {
            let out = Outgoing::command(Sqe::write(3, 1, 0, 1, 0), digests, (64, 128), &buffers);
            let parts = out.parts(&buffers);
            assert_eq!(parts[1], &buffers[64..192]);
            let total: usize = parts.iter().map(|p| p.len()).sum();
            assert_eq!(total, out.len());
            assert_eq!(parts[0][4..8], (total as u32).to_le_bytes());
        }
    }
}
