use crate::command::{Cqe, DsmRange, Sgl, Sqe, Status, Transfer, admin, control, dsm, io};
use crate::fabrics::*;
use crate::features::{AsyncEvent, NumberOfQueues, aec, fid, sel};
use crate::identify::*;
use crate::logs::*;
use crate::nqn::{self, NqnError};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn nvm_commands_round_trip() {
    let write = Sqe::write(5, 2, 0x1_0000_0001, 65536, control::FUA);
    assert_eq!((write.opcode, write.cid.get(), write.nsid.get()), (io::WRITE, 5, 2));
    assert_eq!((write.slba(), write.blocks(), write.fua(), write.prinfo()), (0x1_0000_0001, 65536, true, 0));
    assert_eq!(Sqe::read(5, 2, 9, 1, control::PRACT).prinfo(), 8);
    assert!(Sqe::write_zeroes(1, 1, 0, 1, control::DEAC).deac());
    let trim = Sqe::dataset_management(1, 1, 256, dsm::AD);
    assert_eq!((trim.dsm_ranges(), trim.dsm_attributes()), (256, dsm::AD));
    let ranges = [DsmRange::new(7, 8), DsmRange::new(u64::MAX, u32::MAX)];
    assert_eq!(DsmRange::parse(ranges.as_bytes(), 2), Some(&ranges[..]));
    assert_eq!(DsmRange::parse(&ranges.as_bytes()[..31], 2), None);
    assert_eq!(Sqe::parse(&write.as_bytes()[..63]), None);
    assert_eq!(Sqe::parse(write.as_bytes()), Some(&write));
}

#[test]
fn opcodes_announce_their_direction() {
    for (opcode, transfer) in [
        (io::WRITE, Transfer::HostToController),
        (io::READ, Transfer::ControllerToHost),
        (io::COMPARE, Transfer::HostToController),
        (io::DATASET_MANAGEMENT, Transfer::HostToController),
        (io::FLUSH, Transfer::None),
        (io::WRITE_ZEROES, Transfer::None),
        (io::VERIFY, Transfer::None),
        (admin::IDENTIFY, Transfer::ControllerToHost),
        (admin::GET_LOG_PAGE, Transfer::ControllerToHost),
        (admin::KEEP_ALIVE, Transfer::None),
    ] {
        assert_eq!(Sqe::new(opcode, 0, 0).transfer(), transfer, "opcode {opcode:02x}h");
    }
    assert_eq!(Sqe::from(ConnectCmd::new(0, 0, 32, 0)).transfer(), Transfer::HostToController);
    assert_eq!(Sqe::from(PropertyCmd::get(0, property::CAP)).transfer(), Transfer::None);
}

#[test]
fn status_fields() {
    assert_eq!(Status::UNRECOVERED_READ_ERROR.to_field(), 0x0502);
    assert_eq!(Status::INVALID_OPCODE.dnr().to_field(), 0x8002);
    assert_eq!(Status::UNRECOVERED_READ_ERROR.dnr().to_string(), "Unrecovered Read Error (2h/81h, do not retry)");
    assert_eq!(Status { sct: 7, sc: 0xc1, dnr: false, more: false }.to_string(), "Unknown Status (7h/c1h)");
    for field in 0..=u16::MAX {
        // The phase tag and CRD are not part of the status.
        assert_eq!(Status::from_field(field).to_field(), field & 0xcffe);
    }
    for (n, a) in Status::NAMED.iter().enumerate() {
        assert!(Status::NAMED[..n].iter().all(|b| !a.is(*b)), "{a} twice");
        assert!(a.name().is_some());
    }
    let cqe = Cqe::new(3, 4, Status::SUCCESS).with_result(0x1122_3344_5566_7788);
    assert_eq!((cqe.dw0.get(), cqe.dw1.get(), cqe.result()), (0x5566_7788, 0x1122_3344, 0x1122_3344_5566_7788));
}

#[test]
fn sgl_types() {
    assert_eq!(Sgl::in_capsule(1024).as_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x01]);
    assert_eq!(Sgl::transport(0x1_0000).as_bytes()[8..], [0, 0, 1, 0, 0, 0, 0, 0x5a]);
}

#[test]
fn connect_golden_bytes() {
    let sqe = Sqe::from(ConnectCmd::new(0x0102, 3, 128, 5000));
    let mut want = [0u8; 64];
    want[..5].copy_from_slice(&[0x7f, 0x40, 0x02, 0x01, 0x01]);
    want[24..40].copy_from_slice(Sgl::in_capsule(1024).as_bytes());
    want[42..52].copy_from_slice(&[3, 0, 127, 0, 0, 0, 0x88, 0x13, 0, 0]);
    assert_eq!(sqe.as_bytes(), want);
    assert_eq!(sqe.as_connect().kato.get(), 5000);
    // 65536 entries fit in the zero-based field.
    assert_eq!(ConnectCmd::new(0, 1, 65536, 0).sqsize.get(), 65535);
}

#[test]
fn property_golden_bytes() {
    let get = Sqe::from(PropertyCmd::get(1, property::CAP));
    assert_eq!(get.as_bytes()[40..56], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let cc = Cc { en: true, css: 6, iosqes: 6, iocqes: 4, ..Cc::default() };
    assert_eq!(cc.to_u32(), 0x0046_0061);
    let set = Sqe::from(PropertyCmd::set(1, property::CC, u64::from(cc.to_u32())));
    assert_eq!(set.as_bytes()[40..56], [0, 0, 0, 0, 0x14, 0, 0, 0, 0x61, 0, 0x46, 0, 0, 0, 0, 0]);
    assert_eq!(set.as_property().size(), Some(4));
    let mut bad = PropertyCmd::get(1, property::CAP);
    bad.attrib = 2;
    assert_eq!(bad.size(), None);
}

#[test]
fn properties_round_trip() {
    // Linux's nvmet: MQES 1023, CQR, TO 15 s, CSS bits 0 and 6.
    let cap = Cap { mqes: 1023, cqr: true, to: 30, css: Cap::CSS_NVM | Cap::CSS_IO, ..Cap::default() };
    assert_eq!(cap.to_u64(), 0x0000_0820_1e01_03ff);
    assert_eq!(Cap::from_u64(cap.to_u64()), cap);
    for bit in 0..32 {
        let cc = Cc::from_u32(1 << bit);
        let known = 0x00ff_fff1 & (1 << bit);
        assert_eq!(cc.to_u32(), known, "CC bit {bit}");
        assert_eq!(Csts::from_u32(1 << bit).to_u32(), 0xf & (1 << bit), "CSTS bit {bit}");
    }
}

#[test]
fn names_are_checked() {
    for good in [
        "nqn.2026-01.org.example:array0",
        "nqn.2014-08.org.nvmexpress.discovery",
        "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-55555555abCD",
        "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
        "nqn.1990-12.org.example",
        "nqn.2020-10.org.example:größe",
    ] {
        assert_eq!(nqn::check(good), Ok(()), "{good}");
    }
    assert_eq!(nqn::check(""), Err(NqnError::Empty));
    for bad in [
        "iqn.2026-01.org.example:a",
        "nqn.2026-13.org.example:a",
        "nqn.2026-00.org.example:a",
        "nqn.26-01.org.example:a",
        "nqn.2026-01.",
        "nqn.2026-01.:a",
        "nqn.2026-01..org:a",
        "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-5555",
        "nqn.2014-08.org.nvmexpress:uuid:111111111222233334444455555555abcdef",
        "NQN.2026-01.org.example:a",
    ] {
        assert_eq!(nqn::check(bad), Err(NqnError::Format), "{bad}");
    }
    assert_eq!(nqn::check("nqn.2026-01.org.example:a\n"), Err(NqnError::NotUtf8));
    let long = format!("nqn.2026-01.org.example:{}", "a".repeat(199));
    assert_eq!(nqn::check(&long), Ok(()));
    assert_eq!(nqn::check(&format!("{long}a")), Err(NqnError::TooLong(224)));
}

#[test]
fn connect_data_names_the_bad_field() {
    let mut data = ConnectData::new([7; 16], CNTLID_DYNAMIC, "nqn.2026-01.org.example:s", "nqn.2026-01.org.example:h");
    assert_eq!((data.subnqn(), data.hostnqn()), (Ok("nqn.2026-01.org.example:s"), Ok("nqn.2026-01.org.example:h")));
    assert!(ConnectData::parse(&data.as_bytes()[..1023]).is_none());
    data.subnqn = [b'n'; 256];
    let (error, place) = data.subnqn().unwrap_err();
    assert_eq!((error, place.to_dw0()), (NqnError::NotTerminated, 0x0001_0100));
    data.hostnqn = [0; 256];
    let (error, place) = data.hostnqn().unwrap_err();
    assert_eq!((error, place.to_dw0()), (NqnError::Empty, 0x0001_0200));
    data.hostnqn[..2].copy_from_slice(&[0xff, 0xfe]);
    assert_eq!(data.hostnqn().unwrap_err().0, NqnError::NotUtf8);
    assert_eq!(InvalidParameter::SQSIZE.to_dw0(), 44);
    assert_eq!(InvalidParameter::from_dw0(0x0001_0200), InvalidParameter::HOSTNQN);
    // A name too long for the field keeps its NUL.
    assert_eq!(nqn::to_field(&"x".repeat(300))[255], 0);
}

#[test]
fn discovery_entries() {
    let entry = DiscoveryLogEntry::tcp(2, 1, "nqn.2026-01.org.example:s", "[::1]:4420".parse().unwrap());
    assert_eq!((entry.trtype, entry.adrfam, crate::text(&entry.traddr)), (3, 2, "::1"));
    assert_eq!(&entry.trsvcid[..6], b"4420  ");
    assert_eq!(nqn::from_field(&entry.subnqn), Ok("nqn.2026-01.org.example:s"));
    assert_eq!(DiscoveryLogHeader::new(5, 2).as_bytes()[..18], [5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn identify_helpers() {
    let mut id = IdentifyController::new();
    assert_eq!(id.max_transfer(), None);
    id.mdts = 8;
    id.set_max_in_capsule(8192);
    assert_eq!((id.max_transfer(), id.ioccsz.get(), id.max_in_capsule()), (Some(1 << 20), 516, 8192));
    id.mdts = 255;
    assert_eq!(id.max_transfer(), Some(u64::MAX));
    id.ioccsz.set(0);
    assert_eq!(id.max_in_capsule(), 0);
    id.ioccsz.set(u32::MAX);
    assert_eq!(id.max_in_capsule(), u32::MAX - 64);

    let mut ns = IdentifyNamespace::new(1 << 20, 12);
    assert_eq!((ns.block_size(), ns.nvmcap.get()), (Some(4096), 1 << 32));
    ns.flbas = 0x21;
    ns.lbaf[17].lbads = 9;
    assert_eq!(ns.block_size(), Some(512));
    ns.lbaf[17].lbads = 63;
    assert_eq!(ns.block_size(), None);

    let sqe = Sqe::identify(1, cns::NAMESPACE, 3);
    assert_eq!((sqe.cns(), sqe.cntid(), sqe.identify_csi(), sqe.nsid.get()), (0, 0, 0, 3));
}

#[test]
fn identify_lists() {
    let list = NamespaceList::new([1, 5, 9], 1);
    assert_eq!(list.iter().collect::<Vec<_>>(), [5, 9]);
    assert_eq!(NamespaceList::new(1..=5000, 0).iter().count(), 1024);
    let list = ControllerList::new([1, 2, 0xffef], 2);
    assert_eq!((list.numid.get(), list.cntlid[0].get(), list.cntlid[1].get()), (2, 2, 0xffef));
    assert_eq!(ControllerList::new(0..3000, 0).numid.get(), 2047);
    assert_eq!(CommandSets::nvm().as_bytes()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn namespace_descriptors_round_trip() {
    let ids = NamespaceIds { eui64: Some([1; 8]), nguid: Some([2; 16]), uuid: Some([3; 16]), csi: Some(0) };
    let bytes = ids.to_bytes();
    assert_eq!(bytes[..5], [1, 8, 0, 0, 1]);
    assert_eq!(bytes[12..17], [2, 16, 0, 0, 2]);
    assert_eq!(bytes[52..58], [4, 1, 0, 0, 0, 0]);
    assert_eq!(NamespaceIds::parse(&bytes), ids);
    // An unknown kind is skipped, a wrong length is no identifier, a descriptor over the end stops.
    assert_eq!(NamespaceIds::parse(&[9, 2, 0, 0, 1, 1, 2, 3, 0, 0, 1, 1, 1, 4, 1, 0, 0, 7]).csi, Some(7));
    assert_eq!(NamespaceIds::parse(&[2, 16, 0, 0, 1]), NamespaceIds::default());
    assert_eq!(NamespaceIds::parse(&[]), NamespaceIds::default());
}

#[test]
fn log_page_requests() {
    let get = GetLogPage {
        lid: lid::SMART,
        lsp: 1,
        rae: true,
        len: 1 << 20,
        offset: 0x1_0000_0004,
        lsi: 7,
        index_offset: true,
        csi: 2,
    };
    let sqe = get.to_sqe(1, crate::command::NSID_ALL);
    assert_eq!(sqe.cdw10.get(), 0xffff_8102);
    assert_eq!(sqe.cdw11.get(), 0x0007_0003);
    assert_eq!(GetLogPage::parse(&sqe), get);
    // The largest length is 16 GiB, not an overflow.
    let mut sqe = sqe;
    sqe.cdw10.set(0xffff_0002);
    sqe.cdw11.set(0xffff);
    assert_eq!(GetLogPage::parse(&sqe).len, 1 << 34);
    let page = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(part(&page, 4, 2), Some(&[5, 6][..]));
    assert_eq!(part(&page, 4, 1 << 34), Some(&[5, 6, 7, 8][..]));
    assert_eq!(part(&page, 8, 4), Some(&[][..]));
    assert_eq!(part(&page, 9, 4), None);
    assert_eq!(part(&page, u64::MAX, 4), None);
}

#[test]
fn log_page_contents() {
    let log = EffectsLog::new(&[(admin::IDENTIFY, 0)], &[(io::WRITE, effects::LBCC)]);
    assert_eq!((log.acs[6].get(), log.iocs[1].get(), log.iocs[2].get()), (1, 3, 0));
    assert_eq!(log.as_bytes()[1024 + 4], 3);
    assert_eq!(FirmwareSlotLog::new("1.2").as_bytes()[..16], *b"\x01\0\0\0\0\0\0\x001.2     ");
    assert_eq!(SmartLog::data_units(0), 0);
    assert_eq!(SmartLog::data_units(1), 1);
    assert_eq!(SmartLog::data_units(512_001), 2);
    let group = AnaGroup::new(1, 1, 3, AnaState::Optimized);
    assert_eq!(group.as_bytes()[..17], [1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(AnaHeader::ref_from_bytes(AnaHeader::new(3, 1).as_bytes()).unwrap().ngrps.get(), 1);
    let pages = SupportedPages::new(&[0, 2]);
    assert_eq!((pages.lids[0].get(), pages.lids[1].get(), pages.lids[2].get()), (1, 0, 1));
}

#[test]
fn features_and_events() {
    assert_eq!(NumberOfQueues { submission: 4, completion: 8 }.to_u32(), 0x0007_0003);
    assert_eq!(NumberOfQueues::from_u32(0xffff_ffff).submission, 65536);
    let get = Sqe::get_features(1, fid::KEEP_ALIVE_TIMER, sel::SUPPORTED);
    assert_eq!((get.fid(), get.sel(), get.sv()), (0x0f, 3, false));
    let set = Sqe::set_features(1, fid::ASYNC_EVENT_CONFIG, aec::NAMESPACE | aec::ANA);
    assert_eq!((set.fid(), set.cdw11.get()), (0x0b, 0x900));
    assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_dw0(), 0x0004_0002);
    assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_dw0(), 0x0070_f002);
    assert_eq!(AsyncEvent::from_dw0(0x0070_f002), AsyncEvent::DISCOVERY_CHANGED);
}

#[test]
fn text_fields() {
    assert_eq!(crate::ascii::<6>("ab\u{1}ö"), *b"ab?\x3f\x3f ");
    assert_eq!(crate::ascii::<2>("abc"), *b"ab");
    assert_eq!(crate::text(b"abc  "), "abc");
    assert_eq!(crate::text(b"abc\0def"), "abc");
    assert_eq!(crate::text(&[0xff, 0xfe]), "");
}
