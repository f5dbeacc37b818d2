//! System packages that the tests need: installed when we are root, named otherwise.

use std::path::Path;
use std::process::Command;

/// A program (looked up in the usual places) and the Debian package that has it.
pub type Need = (&'static str, &'static str);

/// What the guest needs.
pub const GUEST: &[Need] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("mke2fs", "e2fsprogs"),
    ("xz", "xz-utils"),
];

fn present(program: &str) -> bool {
    ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists())
}

/// Makes sure that the programs are there. Installs their packages with apt when run as root; otherwise the error names them.
pub fn ensure(needs: &[Need]) -> Result<(), String> {
    let missing: Vec<&str> =
        needs.iter().filter(|(program, _)| !present(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    if !root {
        return Err(format!(
            "these packages are missing: run 'sudo apt-get install {}' and try again",
            missing.join(" ")
        ));
    }
    println!("xtask: installing {}", missing.join(" "));
    apt(&["update"])?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(missing);
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("apt-get")
        .arg("-q")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .map_err(|e| format!("apt-get cannot be run ({e}): install the packages by hand"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("apt-get {} failed:\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
}
