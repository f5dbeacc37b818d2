//! The command line: one definition that yields parsing, help, man pages and completions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use raid_proto::v1;
use uuid::Uuid;

use crate::error::EXIT_CODES;
use crate::size;

/// The heading of the options that every command has: mixed with a command's own they hide it.
const EVERYWHERE: &str = "Options of every command";

/// Steers raidd.
#[derive(Parser, Debug)]
#[command(name = "raidctl", version, about = "Steers raidd: arrays, members, volumes, exports.", after_long_help = EXIT_CODES)]
pub struct Arguments {
    /// Where raidd listens: unix:PATH or http://HOST:PORT [env: RAIDD_SERVER] [default: the first of ./raidd-data, /run/raidd and /var/lib/raidd that holds a control.sock]
    #[arg(long, global = true, value_name = "ADDRESS", help_heading = EVERYWHERE)]
    pub server: Option<String>,
    /// How to print
    #[arg(long, short, global = true, value_enum, default_value = "table", value_name = "FORMAT", help_heading = EVERYWHERE)]
    pub output: Format,
    /// Do not ask before data is destroyed
    #[arg(long, short, global = true, help_heading = EVERYWHERE)]
    pub yes: bool,
    /// A UUID that makes the change idempotent: sent again with the same one, it is not done again
    #[arg(long, global = true, value_name = "UUID", help_heading = EVERYWHERE)]
    pub request_id: Option<Uuid>,
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Command,
}

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One JSON value; one object a line for streams
    Json,
    /// One YAML document; several for streams
    Yaml,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// The daemon, its arrays, exports and running operations
    Status,
    /// Sets of members under one superblock
    #[command(subcommand)]
    Array(Array),
    /// Drives that belong to an array
    #[command(subcommand)]
    Member(Member),
    /// What is exported as a namespace
    #[command(subcommand)]
    Volume(Volume),
    /// Volumes served over NVMe/TCP
    #[command(subcommand)]
    Export(Export),
    /// Long work: rebuilds, resyncs
    #[command(subcommand)]
    Operation(Operation),
    /// What happened
    Events(Events),
    /// Faults on purpose, for tests; raidd must run with --enable-faults
    #[command(subcommand)]
    Fault(Fault),
    /// Print the completions of a shell
    Completion {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands
    Man {
        /// Write one file for each command into this folder
        #[arg(long, value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// `raidctl array`.
#[derive(Subcommand, Debug)]
pub enum Array {
    /// Make an array of files or block devices
    Create(ArrayCreate),
    /// List the arrays
    List,
    /// Show an array with its members, volumes and operations
    Show {
        /// The array
        array: String,
        /// Exit with 0 only if it is healthy: 10 degraded, 11 rebuilding, 12 failed
        #[arg(long)]
        check: bool,
    },
    /// Bring up an array from its members
    Assemble {
        /// Paths of its members
        #[arg(required = true, value_name = "PATH", value_hint = ValueHint::FilePath)]
        members: Vec<String>,
        /// Go on where data may be stale or lost
        #[arg(long)]
        force: bool,
    },
    /// Mark an array clean and let go of its members
    Stop {
        /// The array
        array: String,
    },
    /// Delete an array and all its data
    Delete {
        /// The array
        array: String,
    },
}

/// `raidctl array create`.
#[derive(Args, Debug)]
pub struct ArrayCreate {
    /// The new array's name
    pub name: String,
    /// Path of a member; give it once for each, or several paths after one --member
    #[arg(long = "member", short, required = true, num_args = 1.., value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub members: Vec<String>,
    /// How many of the members, from the end, start as spares
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub spares: u32,
    /// Create members that do not exist as sparse files of this size
    #[arg(long, value_parser = size::parse_positive, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Bytes of an extent, the unit of allocation; a power of two
    #[arg(long, value_parser = size::parse_positive, value_name = "SIZE")]
    pub extent: Option<u64>,
    /// Number of shards, fixed for the array's life [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub shards: Option<u32>,
    /// Overwrite members that carry a signature of something else
    #[arg(long)]
    pub wipe: bool,
    /// Wait until the operations that it starts have ended
    #[arg(long)]
    pub wait: bool,
}

/// A device that is to become a member.
#[derive(Args, Debug)]
pub struct Device {
    /// Create the file, sparse and of this size, if it does not exist
    #[arg(long, value_parser = size::parse_positive, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Overwrite a signature of something else
    #[arg(long)]
    pub wipe: bool,
}

/// `raidctl member`.
#[derive(Subcommand, Debug)]
pub enum Member {
    /// List the members of an array
    List {
        /// The array; all arrays if left out
        array: Option<String>,
    },
    /// Show a member
    Show(MemberName),
    /// Add a device as a spare; it is used at once if a member is failed
    Add {
        /// The array
        array: String,
        /// Path of the device
        #[arg(value_hint = ValueHint::FilePath)]
        path: String,
        #[command(flatten)]
        #[allow(missing_docs)]
        device: Device,
    },
    /// Fail a member on purpose
    Fail(MemberName),
    /// Take a failed, missing or spare member out of the array
    Remove(MemberName),
    /// Rebuild a member's data onto another device and take the member out
    Replace {
        #[command(flatten)]
        #[allow(missing_docs)]
        member: MemberName,
        /// Path of the new device; a spare of the array if left out
        #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
        with: Option<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        device: Device,
        /// Wait until the rebuild has ended
        #[arg(long)]
        wait: bool,
    },
}

/// A member on the command line.
#[derive(Args, Debug)]
pub struct MemberName {
    /// The array
    pub array: String,
    /// The member's number, or the end of its address if no other member's ends like that
    pub member: String,
}

/// A volume on the command line.
#[derive(Args, Debug)]
pub struct VolumeName {
    /// The array, or ARRAY/VOLUME
    pub array: String,
    /// The volume
    pub volume: Option<String>,
}

/// `raidctl volume`.
#[derive(Subcommand, Debug)]
pub enum Volume {
    /// Make a volume
    Create(VolumeCreate),
    /// List the volumes
    List {
        /// The array; all arrays if left out
        array: Option<String>,
    },
    /// Show a volume
    Show(VolumeName),
    /// Delete a volume and its data
    Delete(VolumeName),
}

/// `raidctl volume create`.
#[derive(Args, Debug)]
pub struct VolumeCreate {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub name: VolumeName,
    /// RAID level: 0, 1, 10, 5 or 6
    #[arg(long, short, value_parser = level)]
    pub level: v1::Level,
    /// Bytes of a chunk, a power of two from 4 KiB to 1 MiB
    #[arg(long, value_parser = size::parse_positive, default_value = "64KiB", value_name = "SIZE")]
    pub chunk: u64,
    /// Size of the volume; all free space if left out
    #[arg(long, value_parser = size::parse_positive, value_name = "SIZE")]
    pub size: Option<u64>,
    /// Members that a group spans; all active ones if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub width: Option<u32>,
    /// Logical block size that hosts see: 512 or 4096
    #[arg(long, value_parser = size::parse_positive, default_value = "4096", value_name = "SIZE")]
    pub block_size: u64,
    /// What keeps redundancy and data in step over a crash; bitmap if left out, none for level 0
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Wait until the operations that it starts have ended
    #[arg(long)]
    pub wait: bool,
}

/// Consistency policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Nothing is tracked
    None,
    /// All of the volume is resynced after an unclean stop
    Resync,
    /// Only what was being written is resynced after an unclean stop
    Bitmap,
}

/// `raidctl export`.
#[derive(Subcommand, Debug)]
pub enum Export {
    /// Serve a volume as a namespace
    #[command(group(clap::ArgGroup::new("who").required(true).args(["host", "any_host"])))]
    Create {
        #[command(flatten)]
        #[allow(missing_docs)]
        volume: VolumeName,
        /// The subsystem's NQN, such as nqn.2026-01.org.example:pool
        #[arg(long)]
        nqn: String,
        /// The namespace ID [default: the lowest free one of the subsystem]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        nsid: Option<u32>,
        /// Where the subsystem listens; several are possible
        #[arg(long, required = true, value_name = "ADDRESS:PORT")]
        listen: Vec<String>,
        /// NQN of a host that may connect, what /etc/nvme/hostnqn says there; several are possible
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Whoever reaches the listener may connect
        #[arg(long)]
        any_host: bool,
    },
    /// List what is exported
    List,
    /// Take an export back; its hosts lose the namespace
    Delete {
        /// The subsystem's NQN, or ARRAY/VOLUME
        export: String,
        /// The namespace ID, where the subsystem has several
        #[arg(long)]
        nsid: Option<u32>,
    },
}

/// `raidctl operation`.
#[derive(Subcommand, Debug)]
pub enum Operation {
    /// List the operations that run and the last that ended
    List,
    /// Follow operations until they have ended
    Watch {
        /// IDs; all that run if left out
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
    /// Wait until operations have ended
    Wait {
        /// IDs; all that run if left out
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// How long at most, such as 30s, 5m or 2h
        #[arg(long, value_parser = duration, value_name = "TIME")]
        timeout: Option<Duration>,
    },
    /// Give up an operation where it stands
    Cancel {
        /// The ID
        id: String,
    },
}

/// `raidctl events`.
#[derive(Args, Debug)]
pub struct Events {
    /// Go on with new events until interrupted
    #[arg(long, short)]
    pub follow: bool,
    /// How many past events at most
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
    pub lines: u32,
}

/// `raidctl fault`.
#[derive(Subcommand, Debug)]
pub enum Fault {
    /// Let I/Os of a member go wrong
    Add(FaultAdd),
    /// List the faults in force
    List,
    /// Remove faults
    Clear {
        /// The fault's number; all if left out
        number: Option<u64>,
    },
}

/// `raidctl fault add`.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("effect").required(true).args(["error", "delay", "corrupt"])))]
pub struct FaultAdd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub member: MemberName,
    /// Which I/Os
    #[arg(long = "on", value_enum, value_delimiter = ',', required_unless_present = "corrupt", value_name = "KINDS")]
    pub kinds: Vec<Kind>,
    /// Answer them with an error
    #[arg(long, value_enum)]
    pub error: Option<FaultError>,
    /// Answer them late, such as 50ms or 2s
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub delay: Option<Duration>,
    /// Let reads return changed data
    #[arg(long)]
    pub corrupt: bool,
    /// First byte of the range on the member
    #[arg(long, value_parser = size::parse, default_value = "0", value_name = "SIZE")]
    pub offset: u64,
    /// Length of the range; to the end if left out
    #[arg(long, value_parser = size::parse_positive, value_name = "SIZE")]
    pub length: Option<u64>,
}

/// Kinds of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Reads
    Read,
    /// Writes and zeroing
    Write,
    /// Flushes
    Flush,
}

/// Errors of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultError {
    /// The blocks cannot be read
    Media,
    /// The device fails the command
    Device,
    /// There is no room left
    NoSpace,
    /// The device does not answer in time
    Timeout,
}

fn level(text: &str) -> Result<v1::Level, String> {
    match text.to_ascii_lowercase().trim_start_matches("raid").trim_start_matches('-') {
        "0" => Ok(v1::Level::Raid0),
        "1" => Ok(v1::Level::Raid1),
        "10" => Ok(v1::Level::Raid10),
        "5" => Ok(v1::Level::Raid5),
        "6" => Ok(v1::Level::Raid6),
        _ => Err("choose 0, 1, 10, 5 or 6".into()),
    }
}

/// Reads a time: whole numbers with ms, s, m or h; seconds without.
fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let wrong = || format!("'{text}' is not a time; write it like 50ms, 30s, 5m or 2h");
    let number: u64 = text[..end].parse().map_err(|_| wrong())?;
    let millis = match text[end..].trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times() {
        assert_eq!(duration("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "s", "1.5s", "-1s", "5 weeks", "99999999999999999999h", "9999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn documented_forms_are_understood() {
        for line in [
            "raidctl array create pool --member a --member b c --spares 1 --wipe --wait --size 1GiB",
            "raidctl volume create pool data --level 5 --chunk 64KiB --size 10GiB --width 4 --block-size 4096 --policy resync",
            "raidctl volume create pool/data --level raid10",
            "raidctl export create pool/data --nqn n --listen 127.0.0.1:4420 --host a --host b",
            "raidctl export create pool/data --nqn n --listen 127.0.0.1:4420 --any-host",
            "raidctl member replace pool 1 --with new --size 1G --wait -o json",
            "raidctl --output yaml operation wait --timeout 30s",
            "raidctl fault add pool 1 --on read,write --error media --offset 1M --length 4K",
            "raidctl fault add pool 1 --corrupt",
            "raidctl events --follow -n 5",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        for line in [
            "raidctl",
            "raidctl array create pool",
            "raidctl volume create pool data",
            "raidctl volume create pool data --level 7",
            "raidctl export create pool/data --nqn n --listen 127.0.0.1:4420",
            "raidctl export create pool/data --nqn n --listen 127.0.0.1:4420 --host a --any-host",
            "raidctl fault add pool 1 --on read",
            "raidctl fault add pool 1 --error media",
            "raidctl array list --output xml",
        ] {
            assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
