//! Admin commands, and the way of any command to the admin side.

use std::ops::Range;
use std::sync::Arc;

use nvme_wire::command::{Sqe, Status, Transfer, admin, fctype};
use nvme_wire::fabrics::{CONNECT_DATA_LEN, ConnectData};
use nvme_wire::features::{AsyncEvent, NumberOfQueues, aec, fid, sel};
use nvme_wire::identify::IDENTIFY_LEN;
use nvme_wire::logs::{self, GetLogPage, lid};
use nvme_wire::tcp::FatalError;

use super::buffers::Buffer;
use super::connection::{Connection, IN_CAPSULE, Taken};
use super::controller::{Controller, MAX_EVENTS};
use super::io::{Data, sgl};
use super::poller::Env;
use super::queue::{Op, State};
use super::{identify, log};

/// The most data that an admin command gets, in bytes. Log pages are read in parts if they are longer.
const MAX_ADMIN_DATA: u32 = 1 << 20;
/// Namespaces in the Changed Namespace List; with more of them the list says "all".
pub const MAX_CHANGED: usize = 1024;

/// Asynchronous events of one admin queue. At most one event of a kind is told until the host has read its log page.
#[derive(Debug, Default)]
pub struct Events {
    parked: Vec<u16>,
    config: u32,
    /// Something happened that was not told yet.
    pending: Option<AsyncEvent>,
    /// An event was told and its log page was not read since.
    told: bool,
    /// Namespaces that changed since the host last read about them, by NSID.
    pub changed: Vec<u32>,
    /// The registry's generation that a discovery controller has seen.
    pub generation: u64,
}

/// What an admin command is answered with.
pub struct Reply {
    /// Status.
    pub status: Status,
    /// DW0 and DW1.
    pub result: u64,
    /// Data for the host; what is missing to the length that the host asked for is sent as zeros.
    pub data: Vec<u8>,
}

impl Reply {
    /// No data and a result.
    pub fn result(result: u64) -> Reply {
        Reply { status: Status::SUCCESS, result, data: Vec::new() }
    }

    /// Data.
    pub fn data(data: Vec<u8>) -> Reply {
        Reply { status: Status::SUCCESS, result: 0, data }
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Reply {
        Reply { status, result: 0, data: Vec::new() }
    }
}

/// A number of I/O queues, for both kinds, as Number of Queues has it.
fn queues(count: u16) -> u32 {
    NumberOfQueues { submission: count.into(), completion: count.into() }.to_u32()
}

impl Connection {
    /// A command of the admin queue, a fabrics command, or anything that comes before Connect.
    pub(super) fn admin_capsule(
        &mut self,
        sqe: &Sqe,
        data: Option<Range<usize>>,
        intact: bool,
        env: &mut Env,
    ) -> Taken {
        let cid = sqe.cid.get();
        let connects = sqe.is_fabrics() && sqe.fctype() == fctype::CONNECT;
        if self.queue.is_none() && !connects {
            return self.refuse(cid, Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let data = match sgl(sqe, data) {
            Ok(data) => data,
            Err(status) => return self.refuse(cid, status),
        };
        if !intact {
            return self.refuse(cid, Status::TRANSIENT_TRANSPORT_ERROR);
        }
        match (sqe.transfer(), data) {
            (Transfer::HostToController, Data::Here(range)) if connects => {
                let taken = self.connect_here(sqe, range, env);
                if taken == Taken::Yes {
                    self.counters.other();
                }
                return taken;
            }
            (Transfer::HostToController, Data::Transport(len)) => return self.ask_for_data(sqe, len, connects, env),
            (Transfer::HostToController, _) if connects => {
                return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
            }
            (Transfer::ControllerToHost, Data::Here(_)) => return self.refuse(cid, Status::SGL_TYPE_INVALID.dnr()),
            (Transfer::ControllerToHost, Data::Transport(len)) => {
                if len > MAX_ADMIN_DATA {
                    return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
                }
                let reply = self.admin_command(sqe, len, env);
                self.answer(sqe, len, reply, env);
            }
            _ if sqe.is_fabrics() => {
                let (status, result) = self.fabrics(sqe, env);
                self.take_entry();
                self.respond(cid, status, result);
            }
            _ if sqe.opcode == admin::ASYNC_EVENT_REQUEST => self.park(sqe, env),
            _ => {
                let reply = self.admin_command(sqe, 0, env);
                self.answer(sqe, 0, reply, env);
            }
        }
        self.counters.other();
        Taken::Yes
    }

    fn take_entry(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.taken();
        }
    }

    /// Data that the host did not put in the capsule is asked for by R2T.
    fn ask_for_data(&mut self, sqe: &Sqe, len: u32, connects: bool, env: &mut Env) -> Taken {
        let cid = sqe.cid.get();
        if len == 0 || len > IN_CAPSULE || (connects && len != CONNECT_DATA_LEN as u32) {
            return self.refuse(cid, Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        let Some(index) = self.commands.take(cid) else {
            self.fatal(FatalError::LIMIT, env);
            return Taken::Yes;
        };
        let command = &mut self.commands[index];
        (command.op, command.transfer, command.sqe) = (Op::Admin, len, *sqe);
        command.buffer = Buffer::Heap(vec![0; len as usize].into_boxed_slice());
        self.send_r2t(index);
        self.take_entry();
        Taken::Yes
    }

    /// The data of such a command is in.
    pub(super) fn admin_data_complete(&mut self, index: u16, env: &mut Env) {
        let sqe = self.commands[index].sqe;
        let cid = sqe.cid.get();
        let mut data = ConnectData::new([0; 16], 0, "", "");
        let connects = sqe.is_fabrics() && sqe.fctype() == fctype::CONNECT;
        if connects && let Some(sent) = ConnectData::parse(self.commands[index].buffer.bytes(env.pool)) {
            data = *sent;
        }
        self.release(index, env);
        self.counters.other();
        if connects {
            let (status, result) = self.connect_later(&sqe, &data, env);
            self.respond(cid, status, result);
        } else {
            let reply = self.admin_command(&sqe, 0, env);
            self.respond(cid, reply.status, reply.result);
        }
    }

    /// Sends a reply, with `len` bytes of data if it is a good one.
    fn answer(&mut self, sqe: &Sqe, len: u32, reply: Reply, env: &mut Env) {
        let cid = sqe.cid.get();
        self.take_entry();
        if !reply.status.is_success() || len == 0 || sqe.transfer() != Transfer::ControllerToHost {
            self.respond(cid, reply.status, reply.result);
            return;
        }
        let mut data = reply.data;
        if data.is_empty() {
            self.respond(cid, reply.status, reply.result);
            return;
        }
        data.resize(len as usize, 0);
        let Some(index) = self.commands.take(cid) else {
            self.fatal(FatalError::LIMIT, env);
            return;
        };
        let command = &mut self.commands[index];
        (command.op, command.transfer) = (Op::Admin, len);
        command.buffer = Buffer::Heap(data.into_boxed_slice());
        self.send_data(index, len, false, env);
        self.respond(cid, reply.status, reply.result);
    }

    fn admin_command(&mut self, sqe: &Sqe, len: u32, env: &mut Env) -> Reply {
        let Some(queue) = &self.queue else { return Status::COMMAND_SEQUENCE_ERROR.dnr().into() };
        if queue.qid != 0 || sqe.is_fabrics() {
            return Status::INVALID_OPCODE.dnr().into();
        }
        let controller = Arc::clone(&queue.controller);
        if !controller.ready() {
            return Status::COMMAND_SEQUENCE_ERROR.dnr().into();
        }
        if sqe.fuse() != 0 {
            return Status::INVALID_FIELD.dnr().into();
        }
        match sqe.opcode {
            admin::KEEP_ALIVE => {
                controller.saw(env.now);
                Reply::result(0)
            }
            admin::IDENTIFY if len as usize == IDENTIFY_LEN => {
                identify::identify(sqe, &controller, self.subsystem.as_deref())
            }
            admin::IDENTIFY => Status::DATA_SGL_LENGTH_INVALID.dnr().into(),
            admin::GET_LOG_PAGE => self.log_page(sqe, &controller, len, env),
            admin::SET_FEATURES => self.set_features(sqe, &controller, env),
            admin::GET_FEATURES => self.get_features(sqe, &controller),
            admin::ABORT => self.abort(sqe, env),
            _ => Status::INVALID_OPCODE.dnr().into(),
        }
    }

    fn log_page(&mut self, sqe: &Sqe, controller: &Controller, len: u32, env: &mut Env) -> Reply {
        let wanted = GetLogPage::parse(sqe);
        if wanted.len != u64::from(len) {
            return Status::DATA_SGL_LENGTH_INVALID.dnr().into();
        }
        let local = self.ends().1;
        let page = match self.subsystem.as_deref() {
            None => log::discovery_page(wanted.lid, &env.local.registry, controller, local),
            Some(subsystem) => log::page(wanted.lid, subsystem, &self.events.changed),
        };
        let page = match page {
            Ok(page) => page,
            Err(status) => return status.into(),
        };
        let Some(part) = logs::part(&page, wanted.offset, wanted.len).filter(|_| wanted.offset.is_multiple_of(4))
        else {
            return Status::INVALID_FIELD.dnr().into();
        };
        if !wanted.rae && matches!(wanted.lid, lid::CHANGED_NAMESPACES | lid::DISCOVERY) {
            self.events.told = false;
            if wanted.lid == lid::CHANGED_NAMESPACES {
                self.events.changed.clear();
            }
        }
        let mut part = part.to_vec();
        part.resize(len as usize, 0);
        Reply::data(part)
    }

    fn set_features(&mut self, sqe: &Sqe, controller: &Controller, env: &mut Env) -> Reply {
        let value = sqe.cdw11.get();
        if sqe.sv() {
            return Status::FEATURE_NOT_SAVEABLE.dnr().into();
        }
        match sqe.fid() {
            fid::NUMBER_OF_QUEUES if !controller.discovery => {
                let wanted = NumberOfQueues::from_u32(value);
                let least = wanted.submission.min(wanted.completion);
                if wanted.submission.max(wanted.completion) > 0xFFFF {
                    return Status::INVALID_FIELD.dnr().into();
                }
                if controller.has_queues() {
                    return Status::COMMAND_SEQUENCE_ERROR.dnr().into();
                }
                Reply::result(u64::from(queues(controller.grant(least as u16))))
            }
            fid::ASYNC_EVENT_CONFIG => {
                self.events.config = value & identify::events(controller);
                Reply::result(0)
            }
            fid::KEEP_ALIVE_TIMER => {
                controller.set_kato(value, env.now);
                Reply::result(0)
            }
            fid::VOLATILE_WRITE_CACHE | fid::WRITE_ATOMICITY => Status::FEATURE_NOT_CHANGEABLE.dnr().into(),
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }

    fn get_features(&self, sqe: &Sqe, controller: &Controller) -> Reply {
        let granted = queues(controller.granted());
        let (changeable, default, current) = match sqe.fid() {
            fid::NUMBER_OF_QUEUES if !controller.discovery => (true, granted, granted),
            fid::ASYNC_EVENT_CONFIG => (true, 0, self.events.config),
            fid::KEEP_ALIVE_TIMER => (true, 0, controller.kato()),
            fid::VOLATILE_WRITE_CACHE if self.subsystem.as_ref().is_some_and(|s| s.volatile_cache()) => (false, 1, 1),
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY
            | fid::TEMPERATURE_THRESHOLD
                if !controller.discovery =>
            {
                (false, 0, 0)
            }
            _ => return Status::INVALID_FIELD.dnr().into(),
        };
        match sqe.sel() {
            sel::CURRENT => Reply::result(u64::from(current)),
            // Nothing is saveable, so what is saved is the default.
            sel::DEFAULT | sel::SAVED => Reply::result(u64::from(default)),
            sel::SUPPORTED => Reply::result(if changeable { 1 << 2 } else { 0 }),
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }

    /// Abort. Only events wait for long enough to be aborted; for others the answer is that they were not.
    fn abort(&mut self, sqe: &Sqe, env: &mut Env) -> Reply {
        let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        let parked = self.events.parked.iter().position(|i| self.commands[*i].cid == cid);
        match parked {
            Some(at) if sqid == 0 => {
                let index = self.events.parked.remove(at);
                self.release(index, env);
                self.respond(cid, Status::ABORT_REQUESTED, 0);
                Reply::result(0)
            }
            _ => Reply::result(1),
        }
    }

    /// Asynchronous Event Request: kept until there is an event. It holds nothing but a place, so nobody waits for it.
    fn park(&mut self, sqe: &Sqe, env: &mut Env) {
        let cid = sqe.cid.get();
        self.take_entry();
        if !self.queue.as_ref().is_some_and(|q| q.qid == 0 && q.controller.ready()) {
            self.respond(cid, Status::COMMAND_SEQUENCE_ERROR.dnr(), 0);
            return;
        }
        if self.events.parked.len() >= MAX_EVENTS {
            self.respond(cid, Status::AER_LIMIT_EXCEEDED.dnr(), 0);
            return;
        }
        let Some(index) = self.commands.take(cid) else {
            self.fatal(FatalError::LIMIT, env);
            return;
        };
        self.commands[index].state = State::Parked;
        self.commands[index].op = Op::Admin;
        self.events.parked.push(index);
        self.tell(env);
    }

    /// The controller was disabled or shut down: its event requests are gone, as the specification has it, unanswered.
    pub(super) fn forget_events(&mut self, env: &mut Env) {
        for index in std::mem::take(&mut self.events.parked) {
            self.release(index, env);
        }
        self.events = Events { generation: self.events.generation, ..Events::default() };
    }

    /// Tells the host what is pending, if it has asked and may be told.
    fn tell(&mut self, env: &mut Env) {
        if self.events.told || self.events.parked.is_empty() || !self.is_open() {
            return;
        }
        let Some(event) = self.events.pending.take() else { return };
        let index = self.events.parked.remove(0);
        let cid = self.commands[index].cid;
        self.release(index, env);
        self.events.told = true;
        self.respond(cid, Status::SUCCESS, u64::from(event.to_dw0()));
        self.has_sent(env);
    }

    /// Namespaces came, went or changed.
    pub(super) fn namespaces_changed(&mut self, nsids: &[u32], env: &mut Env) {
        for nsid in nsids {
            if !self.events.changed.contains(nsid) && self.events.changed.len() <= MAX_CHANGED {
                self.events.changed.push(*nsid);
            }
        }
        if !nsids.is_empty() && self.events.config & aec::NAMESPACE != 0 {
            self.events.pending = Some(AsyncEvent::NAMESPACE_CHANGED);
            self.tell(env);
        }
    }

    /// The discovery log page has changed.
    pub(super) fn discovery_changed(&mut self, env: &mut Env) {
        if self.events.config & aec::DISCOVERY != 0 {
            self.events.pending = Some(AsyncEvent::DISCOVERY_CHANGED);
            self.tell(env);
        }
    }
}
