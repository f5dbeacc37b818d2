//! The state directory: what the members do not tell. Arrays live on their members; this holds where to look for them, and
//! the exports.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file's format; another number is refused.
const VERSION: u32 = 1;

/// What is kept over a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Arrays to assemble at the start.
    pub arrays: Vec<KnownArray>,
    /// What is exported.
    pub exports: Vec<Export>,
}

impl Default for State {
    fn default() -> State {
        State { version: VERSION, arrays: Vec::new(), exports: Vec::new() }
    }
}

/// Where an array's members were last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownArray {
    /// The array's name.
    pub name: String,
    /// The array's UUID.
    pub uuid: String,
    /// The members' addresses.
    pub addresses: Vec<String>,
}

/// A volume that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// `ARRAY/VOLUME`.
    pub volume: String,
    /// The subsystem's NQN.
    pub nqn: String,
    /// The namespace ID.
    pub nsid: u32,
    /// Where the subsystem listens.
    pub listen: Vec<String>,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// Any host may connect.
    pub any_host: bool,
}

/// The directory and what it holds.
#[derive(Debug)]
pub struct StateDir {
    file: PathBuf,
    /// What it holds; [`StateDir::save`] makes it durable.
    pub state: State,
}

impl StateDir {
    /// Opens or creates the directory. A file that cannot be understood is an error, never an empty state: exports
    /// would be lost.
    pub fn open(dir: &Path) -> Result<StateDir, String> {
        fs::create_dir_all(dir).map_err(|e| {
            format!("the state directory {} cannot be created: {e}; name another with --state-dir", dir.display())
        })?;
        let file = dir.join("state.json");
        let state = match fs::read(&file) {
            Ok(bytes) => parse(&bytes).map_err(|e| {
                format!(
                    "{} cannot be used: {e}; move it away to start without exports, or restore a copy",
                    file.display()
                )
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(e) => return Err(format!("{} cannot be read: {e}", file.display())),
        };
        Ok(StateDir { file, state })
    }

    /// Makes the state durable: written aside, flushed, renamed, so that a crash leaves the old or the new one.
    pub fn save(&self) -> Result<(), String> {
        let aside = self.file.with_extension("json.new");
        let write = || -> std::io::Result<()> {
            let mut out = fs::File::create(&aside)?;
            out.write_all(serde_json::to_string_pretty(&self.state)?.as_bytes())?;
            out.write_all(b"\n")?;
            out.sync_all()?;
            fs::rename(&aside, &self.file)?;
            fs::File::open(self.file.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|e| {
            format!(
                "the state {} cannot be saved: {e}; free space or mend the permissions there, and try again",
                self.file.display()
            )
        })
    }

    /// Remembers an array's members.
    pub fn remember(&mut self, array: KnownArray) {
        self.state.arrays.retain(|a| a.name != array.name);
        self.state.arrays.push(array);
    }

    /// Forgets an array and its exports.
    pub fn forget(&mut self, name: &str) {
        self.state.arrays.retain(|a| a.name != name);
        self.state.exports.retain(|e| e.volume.split('/').next() != Some(name));
    }
}

fn parse(bytes: &[u8]) -> Result<State, String> {
    let state: State = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if state.version != VERSION {
        return Err(format!("its version is {}, this raidd knows {VERSION}", state.version));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("raidd-state-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn what_is_saved_comes_back() {
        let dir = dir("round");
        let mut state = StateDir::open(&dir).unwrap();
        state.remember(KnownArray { name: "a".into(), uuid: "u".into(), addresses: vec!["/x".into()] });
        state.state.exports.push(Export {
            volume: "a/v".into(),
            nqn: "nqn.2026-11.dev.raidd:a".into(),
            nsid: 1,
            listen: vec!["127.0.0.1:4420".into()],
            hosts: vec![],
            any_host: true,
        });
        state.save().unwrap();
        assert_eq!(StateDir::open(&dir).unwrap().state, state.state);
        state.forget("a");
        assert_eq!(state.state, State::default());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_state_that_cannot_be_understood_is_no_empty_state() {
        let dir = dir("bad");
        fs::create_dir_all(&dir).unwrap();
        for bad in ["{", "{\"version\":2,\"arrays\":[],\"exports\":[]}", ""] {
            fs::write(dir.join("state.json"), bad).unwrap();
            let e = StateDir::open(&dir).unwrap_err();
            assert!(e.contains("state.json cannot be used"), "{e}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
