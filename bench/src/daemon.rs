//! Runs the raidd binary for what is measured inside of it. This crate never links the shell: what it measures is the
//! program that is shipped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

use crate::error::Failure;

/// The environment variable that names the binary.
const VARIABLE: &str = "RAIDD";

/// The binary: `$RAIDD`, or the one beside this program.
fn binary(variable: Option<OsString>, own: &Path) -> Result<PathBuf, Failure> {
    let (path, source) = match variable {
        Some(path) => (PathBuf::from(path), format!("${VARIABLE} names it")),
        None => (own.with_file_name("raidd"), "it should be beside raidbench".to_owned()),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Run(format!(
        "there is no raidd at {} ({source}); build it with `cargo build --release`, or set {VARIABLE} to its path",
        path.display()
    )))
}

/// Runs `raidd bench NAME --json - ARGUMENTS` and reads its answer.
///
/// # Errors
///
/// If there is no raidd, if it fails, or if its answer is not what it should be.
pub fn bench<T: DeserializeOwned>(name: &str, arguments: &[String]) -> Result<T, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::Run(format!("cannot find this program's own file: {e}")))?;
    let path = binary(std::env::var_os(VARIABLE), &own)?;
    let output = Command::new(&path)
        .args(["bench", name, "--json", "-"])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| Failure::Run(format!("cannot run {}: {e}", path.display())))?;
    if !output.status.success() {
        return Err(Failure::Run(format!(
            "{} bench {name} failed: {}; its message is above",
            path.display(),
            output.status
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| {
        Failure::Run(format!(
            "the answer of {} bench {name} cannot be read: {e}; is it of this version?",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_binary_is_named_with_advice() {
        let error = binary(None, Path::new("/nowhere/raidbench")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/raidd") && error.contains("cargo build"), "{error}");
        let error = binary(Some("/nowhere/else".into()), Path::new("/nowhere/raidbench")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/else") && error.contains("$RAIDD"), "{error}");
    }
}
