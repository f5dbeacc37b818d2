use proptest::prelude::*;

use super::*;
use crate::geometry::{Geometry, Level};
use crate::manager::Policy;
use crate::view::SlotState;

fn superblock() -> Superblock {
    let (extent, slot_len, data_offset) = layout(1 << 30, None);
    Superblock {
        compat: 0,
        array_uuid: [1; 16],
        array_name: "tank".into(),
        member_uuid: [2; 16],
        member: 3,
        shards: 16,
        size: 1 << 30,
        extent,
        slot_offset: 4096,
        slot_len,
        data_offset,
    }
}

fn config() -> Config {
    let geometry = Geometry { level: Level::Raid5, width: 3, chunk: 65536, extent: 16 << 20, shards: 16 };
    let slot = |member, extent, state| SlotRecord { member, extent, state };
    Config {
        generation: 7,
        counted: 6,
        array_uuid: [1; 16],
        creating: false,
        history: vec![(1, [8; 16]), (5, [9; 16])],
        members: (0..3)
            .map(|i| MemberRecord {
                uuid: [i; 16],
                state: if i == 1 { RecordState::Failed } else { RecordState::Active },
                reason: if i == 1 { FailReason::Timeout } else { FailReason::Fine },
                replaces: (i == 2).then_some(1),
                joined: 1,
                partial: i == 1,
                left: u64::from(i),
                role: 0,
                size: 1 << 30,
                address: format!("/dev/sd{i}"),
            })
            .collect(),
        volumes: vec![VolumeRecord {
            id: 0,
            uuid: [4; 16],
            name: "data".into(),
            geometry,
            size: geometry.group_bytes() + 4096,
            block_size: 512,
            policy: Policy::Bitmap,
            dirty: true,
            groups: vec![
                GroupRecord {
                    synced: true,
                    slots: vec![
                        slot(0, 0, SlotState::InSync),
                        slot(1, 0, SlotState::Missing),
                        slot(2, 0, SlotState::Rebuilding),
                    ],
                };
                2
            ],
            meta: vec![GroupRecord {
                synced: true,
                slots: vec![slot(0, 2, SlotState::InSync), slot(2, 2, SlotState::Rebuilding)],
            }],
        }],
        next_volume: 1,
    }
}

#[test]
fn what_is_encoded_comes_back() {
    let sb = superblock();
    let bytes = sb.encode();
    assert_eq!(bytes.len(), 4096);
    assert_eq!(Superblock::decode(&bytes), Ok(sb));
    let c = config();
    let bytes = encode_config(&c);
    assert_eq!(bytes.len() % 4096, 0);
    assert_eq!(decode_config(&bytes), Ok(c));
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let sb = superblock().encode();
    for bit in 0..sb.len() * 8 {
        let mut bad = sb.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bad).is_err(), "superblock bit {bit}");
    }
    let c = encode_config(&config());
    let length = u32::from_le_bytes(c[12..16].try_into().unwrap()) as usize;
    for bit in 0..length * 8 {
        let mut bad = c.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_config(&bad).is_err(), "configuration bit {bit}");
    }
    for n in 0..length {
        assert!(decode_config(&c[..n]).is_err(), "truncated to {n}");
        assert!(Superblock::decode(&sb[..n.min(4095)]).is_err());
    }
}

#[test]
fn an_incompatible_feature_is_refused_by_its_bit_and_a_compatible_one_is_ignored() {
    let mut bytes = superblock().encode();
    let seal = |bytes: &mut Vec<u8>| {
        let crc = crc32c::crc32c(&bytes[..4092]).to_le_bytes();
        bytes[4092..].copy_from_slice(&crc);
    };
    bytes[16] = 0xFF;
    seal(&mut bytes);
    assert_eq!(Superblock::decode(&bytes).unwrap().compat, 0xFF);
    bytes[24] = 4;
    seal(&mut bytes);
    assert_eq!(Superblock::decode(&bytes), Err(Corrupt::Incompatible(4)));
    assert!(Corrupt::Incompatible(4).to_string().contains("0x4"));
}

proptest! {
    #[test]
    fn garbage_behind_a_right_checksum_is_an_error_and_no_panic(
        body in prop::collection::vec(any::<u8>(), 0..3000),
        flips in prop::collection::vec((24usize..400, any::<u8>()), 0..8),
    ) {
        let mut bytes = encode_config(&config());
        let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        for (at, value) in &flips {
            bytes[*at % length] = *value;
        }
        let mut random = bytes[..24].to_vec();
        random.extend_from_slice(&body);
        for mut candidate in [bytes[..length].to_vec(), random] {
            let length = candidate.len() as u32;
            candidate[..8].copy_from_slice(b"RAIDDCF1");
            candidate[8..12].copy_from_slice(&1u32.to_le_bytes());
            candidate[12..16].copy_from_slice(&length.to_le_bytes());
            candidate[16..20].fill(0);
            let crc = crc32c::crc32c(&candidate).to_le_bytes();
            candidate[16..20].copy_from_slice(&crc);
            // Whatever comes out, it must hold what the manager relies on.
            if let Ok(config) = decode_config(&candidate) {
                // Never a panic, whatever the sizes and numbers in it.
                let _ = config.check_against(&superblock());
                let _ = config.history_at(config.counted);
                for v in &config.volumes {
                    prop_assert!(v.geometry.validate().is_ok());
                    prop_assert!(v.groups.iter().all(|g| g.slots.len() == v.geometry.width as usize));
                }
            }
        }
    }

    #[test]
    fn a_layout_leaves_room_for_what_it_must_hold(size in (32u64 << 20)..(1 << 45)) {
        let (extent, slot, data) = layout(size, None);
        prop_assert!(extent.is_power_of_two());
        prop_assert_eq!(data % DATA_ALIGN, 0);
        prop_assert!(data >= 4096 + 2 * u64::from(slot));
        let n = extents_of(size, data, extent);
        prop_assert!(data + u64::from(n) * extent <= end_copy_offset(size));
        prop_assert!(u64::from(n) * 8 * 8 <= u64::from(slot), "eight members' extents fit into a slot");
    }
}

#[test]
fn foreign_signatures_are_named() {
    let mut head = vec![0u8; FOREIGN_PROBE as usize];
    let tail = vec![0u8; 4096];
    assert_eq!(foreign_signature(&head, &tail), None);
    head[1080] = 0x53;
    head[1081] = 0xEF;
    assert!(foreign_signature(&head, &tail).unwrap().contains("ext4"));
    head.fill(0);
    head[0x10040..0x10048].copy_from_slice(b"_BHRfS_M");
    assert!(foreign_signature(&head, &tail).unwrap().contains("btrfs"));
    head.fill(0);
    let mut md = tail.clone();
    md[..4].copy_from_slice(&0xa92b_4efcu32.to_le_bytes());
    assert!(foreign_signature(&head, &md).unwrap().contains("md"));
}

#[test]
fn a_configuration_that_contradicts_the_superblock_or_itself_is_refused() {
    let sb = superblock();
    let good = || {
        let mut c = config();
        // The sample's groups are alike; on disk each has extents of its own.
        for (extent, slot) in c.volumes[0].groups[1].slots.iter_mut().map(|s| (1, s)) {
            slot.extent = extent;
        }
        c
    };
    assert_eq!(good().check_against(&sb), Ok(()));
    let bad: [fn(&mut Config); 5] = [
        |c| c.array_uuid = [9; 16],
        |c| c.volumes[0].groups[1].slots[0].extent = 0,
        |c| c.volumes[0].groups[1].slots[0].extent = u32::MAX,
        |c| c.volumes[0].geometry.extent *= 2,
        |c| c.members[2].size = 0,
    ];
    for (i, change) in bad.iter().enumerate() {
        let mut c = good();
        change(&mut c);
        assert!(c.check_against(&sb).is_err(), "case {i}");
    }
    let mut c = good();
    c.next_volume = 0;
    assert!(decode_config(&encode_config(&c)).is_err(), "a volume's number is below the next one");
    c = good();
    c.members[2].replaces = Some(7);
    assert!(decode_config(&encode_config(&c)).is_err());
}

#[test]
fn histories_are_found_by_generation_and_the_oldest_goes_first() {
    let mut c = config();
    assert_eq!((c.history_at(0), c.history_at(1), c.history_at(4)), (None, Some([8; 16]), Some([8; 16])));
    assert_eq!((c.history_at(5), c.history_at(u64::MAX)), (Some([9; 16]), Some([9; 16])));
    for n in 0..100u8 {
        c.begin_history(10 + u64::from(n), [n; 16]);
    }
    assert_eq!(decode_config(&encode_config(&c)).map(|d| d.history), Ok(c.history.clone()));
    assert_eq!((c.history_at(5), c.history_at(109)), (None, Some([99; 16])));
}
