//! The demo's load: each 4 KiB block says which it is and how often it was written, so that a read can be judged.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::nvmf::initiator::{Initiator, Namespace, Op, Request};

/// Bytes of the unit that is stamped.
const BLOCK: usize = 4096;
/// How long nothing may happen before the load gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a measurement gave.
#[derive(Clone)]
pub struct Figures {
    ios: u64,
    bytes: u64,
    seconds: f64,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Default for Figures {
    fn default() -> Figures {
        let latency = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds that the library allows");
        Figures { ios: 0, bytes: 0, seconds: 0.0, latency }
    }
}

impl Figures {
    /// MiB per second.
    pub fn mib_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9) / (1 << 20) as f64
    }

    /// I/Os per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds.max(1e-9)
    }

    /// In words.
    pub fn sentence(&self) -> String {
        format!("{} I/Os, {:.0} MiB/s, {:.0} IOPS", self.ios, self.mib_per_s(), self.iops())
    }
}

/// The block's content: its number and generation, and bytes that follow from both.
fn fill(block: &mut [u8], number: u64, generation: u64) {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ generation.wrapping_mul(0xD1B5_4A32_D192_ED03);
    for word in block.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word.copy_from_slice(&(z ^ (z >> 27)).to_le_bytes());
    }
}

/// One initiator, and what it has written.
pub struct Load {
    initiator: Option<Initiator>,
    namespace: Option<Namespace>,
    /// Generation of each block, 0 for never written.
    generations: Vec<u32>,
    random: u64,
    expected: Vec<u8>,
}

/// Gives the next I/O, as first block and number of blocks, until there is none.
type Next<'a> = dyn FnMut(&mut u64, Instant) -> Option<(u64, u64)> + 'a;

struct Io {
    begun: Instant,
    first: u64,
    blocks: u64,
}

impl Load {
    /// Uses the first namespace.
    pub fn new(initiator: Initiator) -> Result<Load, String> {
        let namespace = initiator.namespaces().first().copied().ok_or("the subsystem has no namespace")?;
        Ok(Load {
            initiator: Some(initiator),
            namespace: Some(namespace),
            generations: Vec::new(),
            random: 0x2545_F491_4F6C_DD1D,
            expected: vec![0; 1 << 20],
        })
    }

    /// The load itself, leaving an empty one behind: for a thread that works with it and gives it back.
    pub fn take(&mut self) -> Load {
        let empty = Load { initiator: None, namespace: None, generations: Vec::new(), random: 1, expected: Vec::new() };
        std::mem::replace(self, empty)
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) -> Result<(), String> {
        match self.initiator.take() {
            Some(initiator) => initiator.disconnect().map_err(|e| format!("disconnecting failed: {e}")),
            None => Ok(()),
        }
    }

    /// Writes the first `bytes` of the namespace in order.
    pub fn write_all(&mut self, bytes: u64, size: u32, generation: u32) -> Result<Figures, String> {
        let blocks = (bytes / BLOCK as u64) as usize;
        self.generations.resize(blocks.max(self.generations.len()), 0);
        self.generations[..blocks].fill(generation);
        let per = u64::from(size) / BLOCK as u64;
        let mut next = 0;
        self.run(false, |_, _| {
            let first = next;
            next += per;
            (first + per <= blocks as u64).then_some((first, per))
        })
    }

    /// Reads the first `bytes` in order and compares every block.
    pub fn verify_all(&mut self, bytes: u64, size: u32) -> Result<Figures, String> {
        let blocks = bytes / BLOCK as u64;
        let per = u64::from(size) / BLOCK as u64;
        let mut next = 0;
        self.run(true, |_, _| {
            let first = next;
            next += per;
            (first + per <= blocks).then_some((first, per))
        })
    }

    /// Reads (and compares) or writes random blocks for a time.
    pub fn random(&mut self, bytes: u64, size: u32, read: bool, time: Duration) -> Result<Figures, String> {
        let per = u64::from(size) / BLOCK as u64;
        let places = bytes / u64::from(size);
        let end = Instant::now() + time;
        self.run(read, move |random, now| {
            if now >= end {
                return None;
            }
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            Some((*random % places * per, per))
        })
    }

    /// Keeps the queues full until `next` has no more, and waits for the rest. `next` gives first block and count.
    fn run(
        &mut self,
        read: bool,
        mut next: impl FnMut(&mut u64, Instant) -> Option<(u64, u64)>,
    ) -> Result<Figures, String> {
        let (Some(mut initiator), Some(namespace)) = (self.initiator.take(), self.namespace) else {
            return Err("the demo's initiator is gone".to_string());
        };
        let result = self.pump(&mut initiator, namespace, read, &mut next);
        self.initiator = Some(initiator);
        result
    }

    fn pump(
        &mut self,
        initiator: &mut Initiator,
        namespace: Namespace,
        read: bool,
        next: &mut Next,
    ) -> Result<Figures, String> {
        let lbas = BLOCK as u64 / u64::from(namespace.block_size);
        let mut figures = Figures::default();
        let mut ios: Vec<Io> = Vec::new();
        let mut free: Vec<usize> = Vec::new();
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        let mut done = Vec::new();
        let mut in_flight = 0usize;
        let mut busy = std::collections::HashSet::new();
        let mut more = true;
        let begin = Instant::now();
        let mut last = begin;
        while more || in_flight > 0 {
            for queue in 0..initiator.queues() {
                while more && initiator.room(queue) > 0 {
                    let now = Instant::now();
                    let Some((first, blocks)) = next(&mut self.random, now) else {
                        more = false;
                        break;
                    };
                    // Two writes of a block at once could end in either order; what it holds must be known.
                    if (first..first + blocks).any(|b| busy.contains(&b)) {
                        continue;
                    }
                    let mut buffer = buffers.pop().unwrap_or_default();
                    let op = if read {
                        Op::Read { slba: first * lbas, blocks: (blocks * lbas) as u32 }
                    } else {
                        busy.extend(first..first + blocks);
                        buffer.resize(blocks as usize * BLOCK, 0);
                        self.stamp(&mut buffer, first);
                        Op::Write { slba: first * lbas, fua: false }
                    };
                    let io = Io { begun: now, first, blocks };
                    let slot = free.pop().unwrap_or(ios.len());
                    if slot == ios.len() {
                        ios.push(io)
                    } else {
                        ios[slot] = io
                    }
                    let request = Request { nsid: namespace.nsid, tag: slot as u64, op, buffer };
                    initiator.submit(queue, request).map_err(|_| "a queue with room took nothing".to_string())?;
                    in_flight += 1;
                }
                initiator.poll(queue, &mut done, None).map_err(|e| format!("the connection failed: {e}"))?;
            }
            let now = Instant::now();
            for completion in done.drain(..) {
                let io = &ios[completion.tag as usize];
                if !completion.cqe.status().is_success() {
                    return Err(format!("an I/O at block {} failed: {}", io.first, completion.cqe.status()));
                }
                if read {
                    self.compare(&completion.buffer, io.first)?;
                } else {
                    (io.first..io.first + io.blocks).for_each(|b| {
                        busy.remove(&b);
                    });
                }
                figures.latency.saturating_record(now.duration_since(io.begun).as_nanos() as u64);
                figures.ios += 1;
                figures.bytes += io.blocks * BLOCK as u64;
                free.push(completion.tag as usize);
                buffers.push(completion.buffer);
                in_flight -= 1;
                last = now;
            }
            if now.duration_since(last) > PATIENCE {
                return Err(format!("{in_flight} I/Os were not answered within {} s", PATIENCE.as_secs()));
            }
        }
        figures.seconds = begin.elapsed().as_secs_f64();
        Ok(figures)
    }

    fn stamp(&mut self, buffer: &mut [u8], first: u64) {
        for (block, number) in buffer.chunks_exact_mut(BLOCK).zip(first..) {
            let generation = &mut self.generations[number as usize];
            *generation += 1;
            fill(block, number, u64::from(*generation));
        }
    }

    fn compare(&mut self, buffer: &[u8], first: u64) -> Result<(), String> {
        for (block, number) in buffer.chunks_exact(BLOCK).zip(first..) {
            let expected = &mut self.expected[..BLOCK];
            fill(expected, number, u64::from(self.generations[number as usize]));
            if block != expected {
                return Err(format!("block {number} does not hold what was written to it last"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_another_place_or_time_is_told_apart() {
        let mut load =
            Load { initiator: None, namespace: None, generations: vec![0; 8], random: 1, expected: vec![0; BLOCK] };
        let mut buffer = vec![0; 2 * BLOCK];
        load.stamp(&mut buffer, 3);
        load.compare(&buffer, 3).expect("what was written");
        load.generations[5] = 1;
        assert!(load.compare(&buffer, 4).is_err(), "another place");
        let old = buffer.clone();
        load.stamp(&mut buffer, 3);
        assert!(load.compare(&old, 3).unwrap_err().contains("block 3"), "an older content");
        load.compare(&buffer, 3).expect("the newer content");
        buffer[2 * BLOCK - 1] ^= 1;
        assert!(load.compare(&buffer, 3).unwrap_err().contains("block 4"), "one bit");
    }
}
