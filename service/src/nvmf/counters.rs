//! What is counted: for each connection, summed for a host or a subsystem when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one connection. Only the connection's reactor writes; anybody may read.
#[derive(Default, Debug)]
pub struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    others: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    buffer_waits: AtomicU64,
}

/// A reading of [`Counters`]: commands and bytes since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Flush commands.
    pub flushes: u64,
    /// Commands of other kinds, admin and fabrics commands included.
    pub others: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Bytes brought by writes.
    pub write_bytes: u64,
    /// Commands answered with a status that is not success.
    pub errors: u64,
    /// Commands received and not yet answered.
    pub in_flight: u64,
    /// Commands that had to wait for a buffer.
    pub buffer_waits: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.errors += other.errors;
        self.in_flight += other.in_flight;
        self.buffer_waits += other.buffer_waits;
    }
}

/// One writer, so a load and a store are enough and no locked instruction is needed.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Counters {
    /// A read of `bytes` bytes came in.
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes);
    }

    /// A write of `bytes` bytes came in.
    pub fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.write_bytes, bytes);
    }

    /// A flush came in.
    pub fn flush(&self) {
        add(&self.flushes, 1);
    }

    /// A command of another kind came in.
    pub fn other(&self) {
        add(&self.others, 1);
    }

    /// A command failed.
    pub fn error(&self) {
        add(&self.errors, 1);
    }

    /// A command had to wait for a buffer.
    pub fn buffer_wait(&self) {
        add(&self.buffer_waits, 1);
    }

    /// This many commands are not yet answered.
    pub fn set_in_flight(&self, n: u64) {
        self.in_flight.store(n, Ordering::Relaxed);
    }

    /// All of them, each as of some moment close to now.
    pub fn totals(&self) -> Totals {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Totals {
            reads: get(&self.reads),
            writes: get(&self.writes),
            flushes: get(&self.flushes),
            others: get(&self.others),
            read_bytes: get(&self.read_bytes),
            write_bytes: get(&self.write_bytes),
            errors: get(&self.errors),
            in_flight: get(&self.in_flight),
            buffer_waits: get(&self.buffer_waits),
        }
    }
}
