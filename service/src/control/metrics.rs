//! `/metrics` in the OpenMetrics text format. Base units only; cumulative counts are counters.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::backend::{
    Array, ArrayState, Backend, Counters, Export, ExportState, Io, IoCounters, MemberState, Operation, System,
    VolumeState,
};

use crate::telemetry::{BOUNDS, Classes};

/// The content type that the format asks for.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of this moment.
pub fn render<B: Backend>(backend: &B) -> Result<String, fmt::Error> {
    let snapshot = Snapshot {
        system: backend.system(),
        arrays: backend.arrays(),
        exports: backend.exports(),
        operations: backend.operations(),
        counters: backend.counters(),
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Snapshot {
    system: System,
    arrays: Vec<Array>,
    exports: Vec<Export>,
    operations: Vec<Operation>,
    counters: Counters,
}

type Labels = Vec<(&'static str, String)>;

/// Writes families one by one.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    /// One family of gauges. The unit is appended to the name.
    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// One family of counters. The unit and `_total` are appended to the name.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, f64>(&value, None)?;
        }
        Ok(())
    }

    /// One family of histograms of seconds.
    fn latencies(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, (Duration, Classes))>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let bounds = BOUNDS.iter().map(|nanos| *nanos as f64 / 1e9).chain([f64::INFINITY]);
        for (labels, (sum, classes)) in samples {
            let buckets: Vec<_> = bounds.clone().zip(classes).collect();
            let count = classes.iter().sum();
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &buckets, None)?;
        }
        Ok(())
    }

    /// The I/O of volumes or members, reads, writes and flushes apart.
    fn io(&mut self, what: &str, all: &[(Labels, Io)]) -> fmt::Result {
        fn kinds<T>(all: &[(Labels, Io)], value: fn(&IoCounters) -> T) -> impl Iterator<Item = (Labels, T)> {
            all.iter().flat_map(move |(labels, io)| {
                [("read", io.read), ("write", io.write), ("flush", io.flush)]
                    .map(|(op, counters)| (with(labels, "op", op), value(&counters)))
            })
        }
        let each = |value: fn(&IoCounters) -> f64| kinds(all, value);
        let name = |suffix: &str| format!("raidd_{what}_{suffix}");
        self.counters(&name("operations"), "I/Os that succeeded", None, each(|c| c.ops as f64))?;
        self.counters(&name("operation_errors"), "I/Os that ended with an error", None, each(|c| c.errors as f64))?;
        self.counters(&name("operation"), "Bytes of I/Os that succeeded", Some(Unit::Bytes), each(|c| c.bytes as f64))?;
        let help = "Sum of the latencies of the I/Os that succeeded";
        self.counters(&name("operation"), help, Some(Unit::Seconds), each(|c| c.time.as_secs_f64()))?;
        let help = "Latencies of the I/Os that succeeded";
        self.latencies(&name("operation_latency"), help, kinds(all, |c| (c.time, c.latencies)))?;
        let in_flight = all.iter().map(|(labels, io)| (labels.clone(), io.in_flight));
        self.gauges(&name("in_flight"), "I/Os in flight", None, in_flight)
    }
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}

fn of_array(name: &str) -> Labels {
    vec![("array", name.to_owned())]
}

fn of_volume(array: &str, volume: &str) -> Labels {
    with(&of_array(array), "volume", volume)
}

fn of_member(array: &str, member: u16) -> Labels {
    with(&of_array(array), "member", &member.to_string())
}

/// One sample for each state that there is, 1 for the one that holds: rules can name a state and never meet a gap.
fn states<S: Copy + PartialEq>(labels: Labels, now: S, all: &[(S, &'static str)]) -> Vec<(Labels, u64)> {
    all.iter().map(|(state, name)| (with(&labels, "state", name), u64::from(*state == now))).collect()
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut w = Writer(encoder);
        self.process(&mut w)?;
        self.resources(&mut w)?;
        self.exported(&mut w)?;
        self.counted(&mut w)
    }
}

impl Snapshot {
    fn process(&self, w: &mut Writer) -> fmt::Result {
        let s = &self.system;
        let version = vec![("version", s.version.clone())];
        w.gauges("raidd_build", "The daemon's version, as a label", None, [(version, 1u64)])?;
        w.gauges(
            "raidd_start_time",
            "When the daemon started, since 1970",
            Some(Unit::Seconds),
            [(vec![], seconds(s.started))],
        )?;
        w.gauges("raidd_resident_memory", "Resident memory", Some(Unit::Bytes), [(vec![], s.resident)])?;
        w.gauges("raidd_buffer", "Buffer memory of all reactors", Some(Unit::Bytes), [(vec![], s.buffers)])?;
        let help = "Buffer memory that is in use";
        w.gauges("raidd_buffer_used", help, Some(Unit::Bytes), [(vec![], s.buffers_used)])?;
        let label = |number: u16| vec![("reactor", number.to_string())];
        let each =
            |value: fn(&super::backend::Reactor) -> f64| s.reactors.iter().map(move |r| (label(r.number), value(r)));
        let help = "Time in passes that did something";
        w.counters("raidd_reactor_busy", help, Some(Unit::Seconds), each(|r| r.busy.as_secs_f64()))?;
        let help = "Time in passes that did nothing, and asleep";
        w.counters("raidd_reactor_idle", help, Some(Unit::Seconds), each(|r| r.idle.as_secs_f64()))
    }

    fn resources(&self, w: &mut Writer) -> fmt::Result {
        use ArrayState as A;
        use MemberState as M;
        use VolumeState as V;
        let arrays = || self.arrays.iter();
        let members = || arrays().flat_map(|a| a.members.iter().map(|m| (of_member(&a.name, m.number), m)));
        let volumes = || arrays().flat_map(|a| a.volumes.iter().map(|v| (of_volume(&a.name, &v.name), v)));
        let all = [
            (A::Assembling, "assembling"),
            (A::Failed, "failed"),
            (A::Degraded, "degraded"),
            (A::Rebuilding, "rebuilding"),
            (A::Healthy, "healthy"),
            (A::Stopped, "stopped"),
        ];
        let samples = arrays().flat_map(|a| states(of_array(&a.name), a.state, &all));
        w.gauges("raidd_array_state", "1 for the state that holds", None, samples)?;
        let samples = arrays().map(|a| (of_array(&a.name), a.capacity));
        w.gauges("raidd_array_capacity", "Space for extents on active members", Some(Unit::Bytes), samples)?;
        let samples = arrays().map(|a| (of_array(&a.name), a.free));
        w.gauges("raidd_array_free", "Free extents on active members", Some(Unit::Bytes), samples)?;
        let all = [
            (M::Active, "active"),
            (M::Rebuilding, "rebuilding"),
            (M::Spare, "spare"),
            (M::Failed, "failed"),
            (M::Missing, "missing"),
        ];
        let samples = members().flat_map(|(labels, m)| states(labels, m.state, &all));
        w.gauges("raidd_member_state", "1 for the state that holds", None, samples)?;
        let samples = members().map(|(labels, m)| (labels, m.size));
        w.gauges("raidd_member_size", "Size of the member", Some(Unit::Bytes), samples)?;
        let samples = members().map(|(labels, m)| (labels, m.used));
        w.gauges("raidd_member_used", "Extents in use", Some(Unit::Bytes), samples)?;
        let samples = members().flat_map(|(labels, m)| {
            [("read", m.read_errors), ("write", m.write_errors)].map(|(op, n)| (with(&labels, "op", op), n as f64))
        });
        w.counters("raidd_member_errors", "Commands that the member answered with an error", None, samples)?;
        let samples = members().map(|(labels, m)| (labels, m.repaired as f64));
        w.counters("raidd_member_repairs", "Read errors that were repaired by rewriting", None, samples)?;
        let all = [
            (V::Offline, "offline"),
            (V::Degraded, "degraded"),
            (V::Rebuilding, "rebuilding"),
            (V::Resyncing, "resyncing"),
            (V::Healthy, "healthy"),
        ];
        let samples = volumes().flat_map(|(labels, v)| states(labels, v.state, &all));
        w.gauges("raidd_volume_state", "1 for the state that holds", None, samples)?;
        let samples = volumes().map(|(labels, v)| (labels, v.size));
        w.gauges("raidd_volume_size", "Size as exported", Some(Unit::Bytes), samples)?;
        let samples = volumes().map(|(labels, v)| (labels, u64::from(v.degraded_groups)));
        w.gauges("raidd_volume_degraded_groups", "Groups with a slot missing or being rebuilt", None, samples)?;
        let samples = volumes().map(|(labels, v)| (labels, u64::from(v.unsynced_groups)));
        w.gauges("raidd_volume_unsynced_groups", "Groups whose redundancy may not match", None, samples)
    }

    fn exported(&self, w: &mut Writer) -> fmt::Result {
        let label = |e: &Export| {
            let labels = of_volume(&e.array, &e.volume);
            with(&with(&labels, "nqn", &e.nqn), "nsid", &e.nsid.to_string())
        };
        let all = [(ExportState::Active, "active"), (ExportState::Offline, "offline")];
        let samples = self.exports.iter().flat_map(|e| states(label(e), e.state, &all));
        w.gauges("raidd_export_state", "1 for the state that holds", None, samples)?;
        let samples = self.exports.iter().map(|e| (label(e), u64::from(e.controllers)));
        w.gauges("raidd_export_controllers", "Connected controllers of the subsystem", None, samples)?;
        let running = || {
            self.operations.iter().filter(|o| !o.ended()).map(|o| (with(&of_array(&o.array), "operation", &o.id), o))
        };
        let samples = running().map(|(labels, o)| (labels, o.done));
        w.gauges("raidd_operation_done", "Work that is done", Some(Unit::Bytes), samples)?;
        let samples = running().map(|(labels, o)| (labels, o.total));
        w.gauges("raidd_operation_work", "Work in all", Some(Unit::Bytes), samples)
    }

    fn counted(&self, w: &mut Writer) -> fmt::Result {
        let c = &self.counters;
        let volumes: Vec<_> = c.volumes.iter().map(|v| (of_volume(&v.array, &v.volume), v.io)).collect();
        w.io("volume", &volumes)?;
        let members: Vec<_> = c.members.iter().map(|m| (of_member(&m.array, m.member), m.io)).collect();
        w.io("member", &members)?;
        let each = |value: fn(&super::backend::ArrayCounters) -> u64| {
            c.arrays.iter().map(move |a| (of_array(&a.array), value(a) as f64))
        };
        let stripes = c.arrays.iter().flat_map(|a| {
            let paths = [
                ("full-stripe", a.full_stripe),
                ("read-modify-write", a.read_modify_write),
                ("reconstruct-write", a.reconstruct_write),
            ];
            paths.map(|(path, n)| (with(&of_array(&a.array), "path", path), n as f64))
        });
        w.counters("raidd_array_stripe_writes", "Stripes written, by the way that the planner chose", None, stripes)?;
        w.counters("raidd_array_stripe_activations", "How often a stripe was handled", None, each(|a| a.activations))?;
        let help = "Requests that joined a stripe of the same batch";
        w.counters("raidd_array_merged_requests", help, None, each(|a| a.merged))?;
        let help = "Reads that were reconstructed from other members";
        w.counters("raidd_array_degraded_reads", help, None, each(|a| a.degraded_reads))?;
        let help = "Read errors that were repaired by rewriting";
        w.counters("raidd_array_read_repairs", help, None, each(|a| a.read_repairs))?;
        let help = "Requests that were answered with an error";
        w.counters("raidd_array_failed_requests", help, None, each(|a| a.failed_requests))
    }
}
