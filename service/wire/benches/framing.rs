//! Cutting a connection's bytes into PDUs, and making the headers that answer them.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nvme_wire::command::{Cqe, Sgl, Sqe, Status};
use nvme_wire::tcp::{
    C2HData, CapsuleCmd, CapsuleResp, Digests, Direction, Event, Framer, H2CData, Params, digest, flags,
};
use nvme_wire::zerocopy::IntoBytes;

const DIGESTS: [(Digests, &str); 2] =
    [(Digests { header: false, data: false }, "no digests"), (Digests { header: true, data: true }, "both digests")];
/// PDUs of a run: what one receive brings at a fair queue depth.
const PDUS: usize = 32;

/// A PDU as a sender makes it, without padding.
fn pdu(header: &[u8], payload: &[u8], digests: Digests) -> Vec<u8> {
    let mut out = header.to_vec();
    if digests.header {
        out.extend(digest::wire(header));
    }
    out.extend(payload);
    if digests.data && !payload.is_empty() {
        out.extend(digest::wire(payload));
    }
    out
}

/// Takes the whole stream; returns how many commands and data PDUs were in it.
fn take(framer: &mut Framer, mut stream: &[u8]) -> usize {
    let mut pdus = 0;
    loop {
        let (used, event) = framer.next(stream).expect("a stream without errors");
        pdus += usize::from(matches!(event, Event::Pdu { digest_ok: true, .. } | Event::DataEnd { digest_ok: true }));
        let payload = if let Event::Payload(len) = event { len } else { 0 };
        let end = matches!(event, Event::NeedMore(_));
        black_box(event);
        framer.received(&stream[used..used + payload]);
        stream = &stream[used + payload..];
        if end {
            return pdus;
        }
    }
}

fn framing(c: &mut Criterion) {
    let mut group = c.benchmark_group("framing");
    for (digests, with) in DIGESTS {
        let read = CapsuleCmd::new(Sqe::read(1, 1, 8, 8, 0), 0, digests, 0);
        let mut write = Sqe::write(1, 1, 8, 8, 0);
        write.sgl = Sgl::in_capsule(4096);
        let write = CapsuleCmd::new(write, 4096, digests, 0);
        let data = H2CData::new(1, 1, 0, 128 << 10, true, digests, 0);
        let payload = vec![0x5a; 128 << 10];
        for (header, payload, what) in [
            (read.as_bytes(), &payload[..0], "read commands"),
            (write.as_bytes(), &payload[..4096], "4 KiB writes in the capsule"),
            (data.as_bytes(), &payload[..], "128 KiB of write data"),
        ] {
            let stream = pdu(header, payload, digests).repeat(PDUS);
            let params = Params { established: true, digests, ..Params::new(Direction::ToController, 8192, 128 << 10) };
            let mut framer = Framer::new(params);
            assert_eq!(take(&mut framer, &stream), PDUS);
            group.throughput(Throughput::Elements(PDUS as u64));
            group.bench_function(format!("{what}, {with}"), |b| b.iter(|| take(&mut framer, black_box(&stream))));
        }
    }
    group.finish();
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    for (digests, with) in DIGESTS {
        group.bench_function(format!("data and response of a read, {with}"), |b| {
            b.iter(|| {
                let id = black_box(7);
                let data = C2HData::new(id, 0, 4096, flags::LAST_PDU, digests, 0);
                let response = CapsuleResp::new(Cqe::new(id, 9, Status::SUCCESS), digests);
                let digest = |bytes| if digests.header { digest::wire(bytes) } else { [0; 4] };
                (digest(data.as_bytes()), digest(response.as_bytes()), data, response)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, framing, headers);
criterion_main!(benches);
