//! Assignment of extents to groups: a pure function over free space and roles (design, section 5).

/// A member's role: a property of the member, never a mode of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Data second, metadata third choice.
    DataPreferred,
    /// Metadata second, data third choice.
    MetadataPreferred,
    /// Data first, metadata never.
    DataOnly,
    /// Metadata first, data never.
    MetadataOnly,
}

impl Role {
    /// The role behind its number on disk.
    pub const fn from_code(code: u8) -> Option<Role> {
        match code {
            0 => Some(Role::DataPreferred),
            1 => Some(Role::MetadataPreferred),
            2 => Some(Role::DataOnly),
            3 => Some(Role::MetadataOnly),
            _ => None,
        }
    }
}

/// What a group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Users' data.
    Data,
    /// Journals, bitmaps, metadata volumes.
    Metadata,
}

/// A member as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub member: u16,
    /// Its role.
    pub role: Role,
    /// Free extents.
    pub free: u32,
}

/// The members for one group's W extents: the shortest prefix of the kind's classes that has enough members with a free
/// extent, and inside it those with most free extents; ties go to the lower number. `None` is "no space".
pub fn place(kind: Kind, width: u16, candidates: &[Candidate]) -> Option<Vec<u16>> {
    let classes = match kind {
        Kind::Data => [Role::DataOnly, Role::DataPreferred, Role::MetadataPreferred],
        Kind::Metadata => [Role::MetadataOnly, Role::MetadataPreferred, Role::DataPreferred],
    };
    let mut eligible: Vec<Candidate> = Vec::new();
    for class in classes {
        eligible.extend(candidates.iter().filter(|c| c.role == class && c.free > 0));
        if eligible.len() >= usize::from(width) {
            eligible.sort_by_key(|c| (std::cmp::Reverse(c.free), c.member));
            let mut chosen: Vec<u16> = eligible[..usize::from(width)].iter().map(|c| c.member).collect();
            chosen.sort_unstable();
            return Some(chosen);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLES: [Role; 4] = [Role::DataPreferred, Role::MetadataPreferred, Role::DataOnly, Role::MetadataOnly];

    /// The rule again, by trying every set of classes in order.
    fn reference(kind: Kind, width: u16, candidates: &[Candidate]) -> Option<Vec<u16>> {
        let rank = |r: Role| match (kind, r) {
            (Kind::Data, Role::DataOnly) | (Kind::Metadata, Role::MetadataOnly) => Some(0),
            (Kind::Data, Role::DataPreferred) | (Kind::Metadata, Role::MetadataPreferred) => Some(1),
            (Kind::Data, Role::MetadataPreferred) | (Kind::Metadata, Role::DataPreferred) => Some(2),
            _ => None,
        };
        (0..3).find_map(|limit| {
            let mut able: Vec<_> =
                candidates.iter().filter(|c| c.free > 0 && rank(c.role).is_some_and(|r| r <= limit)).collect();
            if able.len() < usize::from(width) {
                return None;
            }
            able.sort_by(|a, b| b.free.cmp(&a.free).then(a.member.cmp(&b.member)));
            let mut out: Vec<u16> = able.iter().take(usize::from(width)).map(|c| c.member).collect();
            out.sort_unstable();
            Some(out)
        })
    }

    #[test]
    fn every_combination_of_four_roles_free_space_and_width() {
        for roles in 0..4usize.pow(4) {
            for free in 0..3usize.pow(4) {
                let candidates: Vec<Candidate> = (0..4u16)
                    .map(|m| Candidate {
                        member: m,
                        role: ROLES[roles / 4usize.pow(u32::from(m)) % 4],
                        free: (free / 3usize.pow(u32::from(m)) % 3) as u32,
                    })
                    .collect();
                for width in 1..=4 {
                    for kind in [Kind::Data, Kind::Metadata] {
                        assert_eq!(
                            place(kind, width, &candidates),
                            reference(kind, width, &candidates),
                            "{kind:?} {width} {candidates:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_fast_drive_a_middling_one_and_a_slow_one() {
        let drive = |member, role| Candidate { member, role, free: 10 };
        let drives = [drive(0, Role::MetadataOnly), drive(1, Role::MetadataPreferred), drive(2, Role::DataOnly)];
        assert_eq!(place(Kind::Data, 1, &drives), Some(vec![2]));
        assert_eq!(place(Kind::Metadata, 1, &drives), Some(vec![0]));
        assert_eq!(place(Kind::Data, 2, &drives), Some(vec![1, 2]));
        assert_eq!(place(Kind::Metadata, 2, &drives), Some(vec![0, 1]));
        assert_eq!(place(Kind::Data, 3, &drives), None);
    }
}
