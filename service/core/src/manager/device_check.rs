//! A device that is to become a member of a running array: looked at first, then given its superblocks, then recorded.

use super::create::carried;
use super::{After, Answer, CommandTag, DeviceId, DeviceInfo, ErrorKind, Manager, Pending, Uuid};
use crate::action::{IoStatus, MemberId};
use crate::ondisk::{
    FOREIGN_PROBE, MemberRecord, RecordState, SUPERBLOCK_BYTES, encode_config, end_copy_offset, extents_of,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Head,
    Tail,
    Blank,
    BlankFlush,
    Super,
    SuperFlush,
}

pub(super) struct Check {
    tag: CommandTag,
    device: DeviceInfo,
    uuid: Uuid,
    wipe: bool,
    /// The member that the new one takes the place of.
    replaces: Option<u16>,
    head: Vec<u8>,
    outstanding: usize,
    failed: Option<IoStatus>,
}

impl Manager {
    pub(super) fn check_device(
        &mut self,
        tag: CommandTag,
        device: DeviceInfo,
        uuid: Uuid,
        wipe: bool,
        replaces: Option<u16>,
    ) {
        if extents_of(device.size, self.layout.data_offset, self.layout.extent) == 0 {
            let text = format!(
                "{} has {} bytes, too few for array '{}': at least {} are needed",
                device.address,
                device.size,
                self.name,
                self.layout.data_offset + self.layout.extent + u64::from(SUPERBLOCK_BYTES)
            );
            return self.refuse(tag, ErrorKind::InvalidArgument, text);
        }
        if self.devices.iter().flatten().any(|d| d.id == device.id) {
            let text = format!("{} is a member of array '{}' already", device.address, self.name);
            return self.refuse(tag, ErrorKind::AlreadyExists, text);
        }
        let id = device.id;
        let check = Check { tag, device, uuid, wipe, replaces, head: Vec::new(), outstanding: 1, failed: None };
        self.check = Some(check);
        self.read(Pending::Check(Step::Head), id, 0, FOREIGN_PROBE);
    }

    pub(super) fn check_read(&mut self, step: Step, result: Result<Vec<u8>, IoStatus>) {
        let Some(check) = &mut self.check else { return };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(e) => return self.check_failed(e),
        };
        let (id, tail) = (check.device.id, end_copy_offset(check.device.size));
        if matches!(step, Step::Head) {
            check.head = bytes;
            return self.read(Pending::Check(Step::Tail), id, tail, SUPERBLOCK_BYTES);
        }
        if !check.wipe
            && let Some(what) = carried(&check.head, &bytes)
        {
            let tag = check.tag;
            let text =
                format!("{} carries {what}: give --wipe to overwrite it, or name another device", check.device.address);
            self.check = None;
            return self.refuse(tag, ErrorKind::FailedPrecondition, text);
        }
        // The slots are blank before a superblock leads to them: an old configuration there could have a higher generation.
        check.outstanding = 4;
        let blank = vec![0u8; SUPERBLOCK_BYTES as usize];
        let slots = u64::from(SUPERBLOCK_BYTES);
        for offset in [0, tail, slots, slots + u64::from(self.layout.slot_len)] {
            self.write(Pending::Check(Step::Blank), id, offset, blank.clone());
        }
    }

    pub(super) fn check_done(&mut self, step: Step, status: IoStatus) {
        let Some(check) = &mut self.check else { return };
        check.outstanding -= 1;
        if status != IoStatus::Ok {
            check.failed = Some(status);
        }
        if check.outstanding > 0 {
            return;
        }
        if let Some(status) = check.failed {
            return self.check_failed(status);
        }
        let (id, size) = (check.device.id, check.device.size);
        check.outstanding = 1;
        match step {
            Step::Blank => self.flush(Pending::Check(Step::BlankFlush), id),
            Step::BlankFlush => self.write_superblocks(id, size),
            Step::Super => self.flush(Pending::Check(Step::SuperFlush), id),
            _ => self.check_ended(),
        }
    }

    fn write_superblocks(&mut self, device: DeviceId, size: u64) {
        let member = self.config.members.len() as u16;
        let Some(check) = &mut self.check else { return };
        check.outstanding = 2;
        let record = MemberRecord {
            uuid: check.uuid,
            state: RecordState::Spare,
            role: 0,
            size,
            address: check.device.address.clone(),
        };
        self.config.members.push(record);
        let bytes = self.superblock(member).encode();
        // The member joins the configuration only when its superblocks are durable.
        self.config.members.pop();
        self.write(Pending::Check(Step::Super), device, 0, bytes.clone());
        self.write(Pending::Check(Step::Super), device, end_copy_offset(size), bytes);
    }

    fn check_ended(&mut self) {
        let Some(check) = self.check.take() else { return };
        let member = self.config.members.len() as u16;
        self.config.members.push(MemberRecord {
            uuid: check.uuid,
            state: RecordState::Spare,
            role: 0,
            size: check.device.size,
            address: check.device.address.clone(),
        });
        if encode_config(&self.config).len() > self.layout.slot_len as usize {
            self.config.members.pop();
            let text = format!("array '{}' cannot record another member: its configuration slots are full", self.name);
            return self.refuse(check.tag, ErrorKind::NoSpace, text);
        }
        self.push_member(Some(check.device), "");
        if let Some(old) = check.replaces {
            self.replace_with(old);
        }
        self.commit(Some(After::Reply(check.tag, Answer::Member(MemberId(member)))));
    }

    fn check_failed(&mut self, status: IoStatus) {
        let Some(check) = self.check.take() else { return };
        let text = format!(
            "{} failed ({}): it was not added to array '{}'",
            check.device.address,
            super::failure_text(status),
            self.name
        );
        self.refuse(check.tag, ErrorKind::Device, text);
    }
}
