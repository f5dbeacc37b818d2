//! `cargo xtask proto` in an xtask that was built without the generator: builds one with it and runs that.

use std::process::Command;

/// Runs the same chore with the feature `proto`.
pub fn run(check: bool) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "proto", "--", "proto"]);
    cargo.args(check.then_some("--check"));
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("generating raid.v1 did not succeed; its message is above".into()),
        Err(e) => Err(format!("cargo could not be started: {e}")),
    }
}
