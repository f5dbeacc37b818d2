//! `cargo xtask test`: everything, in the order in which a fault is cheapest to find.

use std::process::Command;
use std::time::Instant;

fn cargo(title: &str, arguments: &[&str]) -> Result<(), String> {
    step(title, Command::new(env!("CARGO")).args(arguments))
}

fn step(title: &str, command: &mut Command) -> Result<(), String> {
    println!("== {title}");
    let begin = Instant::now();
    let status = command.status().map_err(|e| format!("{title}: {command:?} cannot be run: {e}"))?;
    println!(
        "== {title}: {} in {:.0} s",
        if status.success() { "ok" } else { "FAILED" },
        begin.elapsed().as_secs_f64()
    );
    if status.success() { Ok(()) } else { Err(format!("{title} failed: run it alone with {command:?}")) }
}

/// Runs the tests; `quick` leaves out the guest, the lints and the long simulation.
pub fn run(quick: bool) -> Result<(), String> {
    let begin = Instant::now();
    cargo("format", &["fmt", "--all", "--check"])?;
    if !quick {
        crate::packages::ensure(crate::packages::GUEST)?;
        cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        println!("== generated code");
        crate::proto::run(true)?;
    }
    // The end-to-end tests start these binaries.
    cargo("binaries", &["build", "--workspace", "--bins"])?;
    cargo("tests", &["test", "--workspace", "--no-fail-fast"])?;
    if !quick {
        cargo("release binaries", &["build", "--release", "--workspace", "--bins"])?;
        cargo("simulation", &["run", "--release", "--quiet", "-p", "raidsim", "--", "sweep", "--cases", "800"])?;
        cargo("demo", &["run", "--release", "--quiet", "--", "demo"])?;
        println!("== guest");
        crate::vm::initiator()?;
        println!("== crash");
        crate::crash::run(&crate::crash::Options::in_tests())?;
    }
    println!("== all passed in {:.0} s", begin.elapsed().as_secs_f64());
    Ok(())
}
