//! One task at a time: a creation, an assembly, or a command that takes more than one step. A task is a list of phases;
//! a phase orders some device operations or waits for a publication, and the next one begins when all have been answered.

use std::collections::BTreeMap;

use super::assemble::AssembleTask;
use super::clean::StopTask;
use super::create::CreateTask;
use super::members::{AddTask, RemoveTask, ReplaceTask};
use super::volumes::{CreateVolumeTask, DeleteVolumeTask};
use super::{Answer, ArrayState, Command, CommandTag, DeviceId, ManageError, Manager, ManagerAction, Pending, refuse};
use crate::action::IoStatus;

/// Operations of the current phase.
#[derive(Default)]
pub(super) struct TaskIo {
    pub outstanding: usize,
    failed: Vec<(DeviceId, IoStatus)>,
    reads: BTreeMap<(DeviceId, u8), Result<Vec<u8>, IoStatus>>,
}

impl TaskIo {
    pub fn done(&mut self, device: DeviceId, status: IoStatus) {
        self.outstanding -= 1;
        if status != IoStatus::Ok {
            self.failed.push((device, status));
        }
    }

    pub fn read_done(&mut self, device: DeviceId, part: u8, result: Result<Vec<u8>, IoStatus>) {
        self.outstanding -= 1;
        self.reads.insert((device, part), result);
    }

    /// The answer to a read of the last phase. A short answer is an error.
    pub fn take_read(&mut self, device: DeviceId, part: u8) -> Result<Vec<u8>, IoStatus> {
        self.reads.remove(&(device, part)).unwrap_or(Err(IoStatus::DeviceError))
    }

    /// The operations of the last phase that failed.
    pub fn take_failed(&mut self) -> Vec<(DeviceId, IoStatus)> {
        std::mem::take(&mut self.failed)
    }
}

/// Where a task stands after a phase.
pub(super) enum Next {
    /// Another phase follows when the operations ordered by this one have ended.
    Phase,
    /// Another phase follows when the view with this number has reached all engines.
    Published(u64),
    /// It has ended.
    End(Result<Answer, ManageError>),
}

pub(super) enum Kind {
    Create(Box<CreateTask>),
    Assemble(Box<AssembleTask>),
    Add(Box<AddTask>),
    Remove(RemoveTask),
    Replace(Box<ReplaceTask>),
    CreateVolume(Box<CreateVolumeTask>),
    DeleteVolume(DeleteVolumeTask),
    Stop(StopTask),
}

pub(super) struct Task {
    pub tag: CommandTag,
    pub kind: Kind,
    wait: u64,
}

impl Manager {
    pub(super) fn begin(&mut self, tag: CommandTag, kind: Kind) {
        self.task = Some(Task { tag, kind, wait: 0 });
    }

    /// One phase of the task, or the next command.
    pub(super) fn step_task(&mut self) -> bool {
        if self.task_io.outstanding > 0 {
            return false;
        }
        let Some(mut task) = self.task.take() else { return self.next_command() };
        if task.wait > self.published {
            self.task = Some(task);
            return false;
        }
        let next = if self.state == ArrayState::Failed && !matches!(task.kind, Kind::Stop(_)) {
            Next::End(Err(self.not_running()))
        } else {
            match &mut task.kind {
                Kind::Create(t) => self.create_phase(t),
                Kind::Assemble(t) => self.assemble_phase(t),
                Kind::Add(t) => self.add_phase(t),
                Kind::Remove(t) => self.remove_phase(t),
                Kind::Replace(t) => self.replace_phase(t),
                Kind::CreateVolume(t) => self.create_volume_phase(t),
                Kind::DeleteVolume(t) => self.delete_volume_phase(t),
                Kind::Stop(t) => self.stop_phase(t),
            }
        };
        match next {
            Next::Phase => self.task = Some(task),
            Next::Published(sequence) => {
                task.wait = sequence;
                self.task = Some(task);
            }
            Next::End(result) => {
                self.task_io = TaskIo::default();
                if let Kind::CreateVolume(t) = &task.kind {
                    self.end_create_operation(t, &result);
                }
                if self.state == ArrayState::Starting {
                    // A refused creation or assembly: this manager has nothing to manage.
                    self.state = ArrayState::Stopped;
                    self.reason = result.as_ref().err().map_or(String::new(), |e| e.message.clone());
                    self.commit_needed = false;
                    self.publish_needed = false;
                }
                self.reply(task.tag, result);
            }
        }
        true
    }

    fn next_command(&mut self) -> bool {
        let Some((tag, command)) = self.queue.pop_front() else { return false };
        let able = match self.state {
            ArrayState::Running => true,
            ArrayState::Failed => matches!(command, Command::Stop),
            _ => false,
        };
        if !able {
            self.reply(tag, Err(self.not_running()));
            return true;
        }
        let kind = match command {
            Command::AddMember { device, uuid, wipe } => Kind::Add(Box::new(AddTask::new(device, uuid, wipe))),
            Command::RemoveMember(member) => Kind::Remove(RemoveTask::new(member)),
            Command::ReplaceMember { member, device, uuid, wipe } => {
                Kind::Replace(Box::new(ReplaceTask::new(member, device, uuid, wipe)))
            }
            Command::CreateVolume(spec) => Kind::CreateVolume(Box::new(CreateVolumeTask::new(spec))),
            Command::DeleteVolume(volume) => Kind::DeleteVolume(DeleteVolumeTask::new(volume)),
            Command::Stop => Kind::Stop(StopTask::new(false)),
            Command::Delete => Kind::Stop(StopTask::new(true)),
            Command::FailMember(member) => {
                self.fail_command(tag, member);
                return true;
            }
            Command::CancelOperation(id) => {
                self.cancel_command(tag, id);
                return true;
            }
        };
        self.begin(tag, kind);
        true
    }

    pub(super) fn task_read(&mut self, device: DeviceId, part: u8, offset: u64, len: u32) {
        let tag = self.tag(Pending::Task(device, part));
        self.task_io.outstanding += 1;
        self.actions.push_back(ManagerAction::Read { tag, device, offset, len });
    }

    pub(super) fn task_write(&mut self, device: DeviceId, offset: u64, bytes: Vec<u8>) {
        let tag = self.tag(Pending::Task(device, 0));
        self.task_io.outstanding += 1;
        self.actions.push_back(ManagerAction::Write { tag, device, offset, bytes });
    }

    pub(super) fn task_zero(&mut self, device: DeviceId, offset: u64, len: u64) {
        let tag = self.tag(Pending::Task(device, 0));
        self.task_io.outstanding += 1;
        self.actions.push_back(ManagerAction::Zero { tag, device, offset, len });
    }

    pub(super) fn task_flush(&mut self, device: DeviceId) {
        let tag = self.tag(Pending::Task(device, 0));
        self.task_io.outstanding += 1;
        self.actions.push_back(ManagerAction::Flush { tag, device });
    }

    pub(super) fn task_quiesce(&mut self) {
        let tag = self.tag(Pending::TaskQuiesce);
        self.task_io.outstanding += 1;
        self.actions.push_back(ManagerAction::Quiesce { tag });
    }

    /// The first failed operation of the last phase as a refusal.
    pub(super) fn task_failure(&mut self, devices: &[DeviceInfoRef<'_>], what: &str) -> Option<ManageError> {
        let (device, status) = *self.task_io.take_failed().first()?;
        let address = devices.iter().find(|d| d.0 == device).map_or("a device", |d| d.1);
        Some(refuse(
            super::ErrorKind::Device,
            format!("{address} failed while {what} ({}); check the device and try again", status_text(status)),
        ))
    }
}

/// A device's number and address.
pub(super) type DeviceInfoRef<'a> = (DeviceId, &'a str);

/// An answer in words.
pub(super) fn status_text(status: IoStatus) -> &'static str {
    match status {
        IoStatus::Ok => "no error",
        IoStatus::ReadError => "blocks cannot be read",
        IoStatus::DeviceError => "device error",
        IoStatus::NoSpace => "no space",
        IoStatus::Timeout => "no answer in time",
        IoStatus::Miscompare => "miscompare",
    }
}
