//! Rules of the house that no compiler checks: file lengths, where `unsafe` may stand, who may depend on whom, and that
//! the docs' links and paths lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// The longest file, in lines, its test module not counted.
const LONGEST: usize = 800;
/// The median file must stay far below the longest.
const MEDIAN: usize = 400;

/// Files and folders that may hold `unsafe`, each for a reason that design, section 4 gives.
const UNSAFE_ALLOWED: &[&str] = &[
    "service/src/dma/",
    "service/src/block/uring/",
    "service/src/block/uring.rs",
    "service/src/parity/",
    "service/tests/no_allocation.rs",
];

/// Crates and the workspace crates that they may depend on.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("service/core", &[]),
    ("service/wire", &[]),
    ("service/sim", &["raid-core", "nvme-wire"]),
    ("service", &["raid-core", "nvme-wire", "raid-proto"]),
    ("proto", &[]),
    ("ctl", &["raid-proto"]),
    ("bench", &["raid-proto", "nvme-wire"]),
    ("deploy/xtask", &[]),
];

const OUR_CRATES: &[&str] =
    &["raid-core", "nvme-wire", "raidsim", "raidd", "raid-proto", "raidctl", "raidbench", "xtask"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the service folder has a parent").to_path_buf()
}

fn walk(dir: &Path, extension: &str, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable folder").map(|e| e.expect("a readable entry")) {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "raidd-data" && name != "generated" {
                walk(&path, extension, out);
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
}

fn files(extension: &str) -> Vec<(String, String)> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root, extension, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|p| {
            let text = fs::read_to_string(&p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
            (p.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned(), text)
        })
        .collect()
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.contains("_tests") || path.contains("/benches/")
}

/// A file's length without its test module, which by custom stands last.
fn length(text: &str) -> usize {
    text.lines().take_while(|l| !l.trim_start().starts_with("#[cfg(test)]")).count()
}

#[test]
fn files_are_small_enough_to_hold_in_the_head() {
    let mut lengths: Vec<(usize, String)> =
        files("rs").into_iter().filter(|(p, _)| !is_test_file(p)).map(|(p, t)| (length(&t), p)).collect();
    lengths.sort();
    let too_long: Vec<_> = lengths.iter().filter(|(n, _)| *n > LONGEST).collect();
    assert!(too_long.is_empty(), "files over {LONGEST} lines, split them: {too_long:?}");
    let median = lengths[lengths.len() / 2].0;
    assert!(median <= MEDIAN, "the median file has {median} lines, over {MEDIAN}");
}

/// True if the line uses the keyword outside of comments and strings.
fn holds_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait"].iter().any(|k| code.contains(k))
        && !code.contains('"')
}

#[test]
fn unsafe_stands_only_where_the_design_allows() {
    let mut found = Vec::new();
    for (path, text) in files("rs") {
        if path == "service/tests/tidy.rs" || UNSAFE_ALLOWED.iter().any(|a| path.starts_with(a)) {
            continue;
        }
        for (n, line) in text.lines().enumerate() {
            if holds_unsafe(line) {
                found.push(format!("{path}:{}", n + 1));
            }
        }
    }
    assert!(found.is_empty(), "unsafe outside of the list: {found:?}");
}

#[test]
fn the_unsafe_detector_detects() {
    assert!(holds_unsafe("    unsafe { x() }"));
    assert!(holds_unsafe("pub unsafe fn x() {"));
    assert!(!holds_unsafe("// unsafe { x() }"));
    assert!(!holds_unsafe("#![forbid(unsafe_code)]"));
}

#[test]
fn core_and_wire_forbid_unsafe() {
    for lib in ["service/core/src/lib.rs", "service/wire/src/lib.rs"] {
        let text = fs::read_to_string(root().join(lib)).expect("the crate's root");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{lib} does not forbid unsafe code");
    }
}

/// The dependencies of a manifest that are crates of ours, dev-dependencies included.
fn our_dependencies(manifest: &str) -> Vec<&str> {
    let mut section = "";
    let mut out = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies") {
            let name = line.split(['.', '=', ' ']).next().unwrap_or("");
            if OUR_CRATES.contains(&name) {
                out.push(name);
            }
        }
    }
    out
}

#[test]
fn crates_know_only_whom_they_may() {
    for (folder, allowed) in MAY_DEPEND {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        for dependency in our_dependencies(&manifest) {
            assert!(allowed.contains(&dependency), "{folder} depends on {dependency}; it may know only {allowed:?}");
        }
    }
}

#[test]
fn inside_the_shell_sides_meet_at_the_block_device() {
    let forbidden: &[(&str, &[&str])] = &[
        (
            "service/src/nvmf/",
            &["raid_core::engine", "raid_core::manager", "crate::volume", "crate::daemon", "crate::control"],
        ),
        ("service/src/control/", &["crate::daemon", "crate::volume", "crate::nvmf", "raid_core::engine"]),
        ("service/src/block/", &["crate::nvmf", "crate::volume", "crate::daemon", "raid_core::engine"]),
        ("service/src/dma/", &["crate::block", "crate::nvmf", "crate::volume"]),
        ("service/src/reactor/", &["crate::nvmf", "crate::volume", "crate::daemon"]),
    ];
    for (path, text) in files("rs") {
        for (folder, names) in forbidden {
            if path.starts_with(folder) && !is_test_file(&path) {
                for name in *names {
                    assert!(!text.contains(name), "{path} names {name}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_left_to_do() {
    let marks = [["TO", "DO"], ["FIX", "ME"], ["#[ign", "ore]"], ["todo", "!("], ["unimplemented", "!("]];
    for (path, text) in files("rs").into_iter().chain(files("md")).chain(files("proto")) {
        for mark in marks.map(|m| m.concat()) {
            assert!(!text.contains(&mark), "{path} holds {mark}");
        }
    }
}

/// Relative links of a Markdown text.
fn links(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("](") {
        rest = &rest[start + 2..];
        let Some(end) = rest.find(')') else { break };
        let link = rest[..end].split('#').next().unwrap_or("");
        if !link.is_empty() && !link.contains("://") {
            out.push(link);
        }
        rest = &rest[end..];
    }
    out
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    for (path, text) in files("md") {
        let folder = root().join(&path).parent().expect("a folder").to_path_buf();
        for link in links(&text) {
            assert!(folder.join(link).exists(), "{path} links to {link}, which is not there");
        }
    }
}

#[test]
fn paths_in_the_map_of_the_code_exist() {
    let text = fs::read_to_string(root().join("service/ARCHITECTURE.md")).expect("the map");
    let mut checked = 0;
    for quoted in text.split('`').skip(1).step_by(2) {
        if quoted.starts_with("service/") && !quoted.contains(['{', '*', ' ']) {
            assert!(root().join(quoted).exists(), "ARCHITECTURE.md names {quoted}, which is not there");
            checked += 1;
        }
    }
    assert!(checked >= 8, "the map names only {checked} places");
}
