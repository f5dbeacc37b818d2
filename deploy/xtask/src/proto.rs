//! Generates `proto/src/generated` and `proto/src/descriptor.bin` from `proto/raid/v1`, without a protoc binary.

use std::fs;
use std::path::{Path, PathBuf};

/// Generates, or with `check` only compares with what is committed.
pub fn run(check: bool) -> Result<(), String> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let committed = proto.join("src/generated");
    if !check {
        return generate(&proto, &committed);
    }
    let fresh = std::env::temp_dir().join(format!("raidd-proto-{}", std::process::id()));
    let result = generate(&proto, &fresh).and_then(|()| compare(&committed, &fresh));
    // The comparison's result counts; a leftover in the temporary folder does no harm.
    let _ = fs::remove_dir_all(&fresh);
    result
}

fn generate(proto: &Path, out: &Path) -> Result<(), String> {
    let mut sources: Vec<PathBuf> = fs::read_dir(proto.join("raid/v1"))
        .map_err(|e| format!("{}: {e}", proto.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "proto"))
        .collect();
    sources.sort();
    let mut compiler = protox::Compiler::new([proto]).map_err(|e| e.to_string())?;
    compiler.include_imports(true).include_source_info(true);
    for source in &sources {
        compiler.open_file(source).map_err(|e| format!("{e:?}"))?;
    }
    let files = compiler.file_descriptor_set();
    fs::create_dir_all(out).map_err(|e| format!("{}: {e}", out.display()))?;
    // The committed set serves reflection, which has no use for comments.
    compiler.include_source_info(false);
    let descriptor = out.join("descriptor.bin");
    fs::write(&descriptor, compiler.encode_file_descriptor_set())
        .map_err(|e| format!("{}: {e}", descriptor.display()))?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .out_dir(out)
        .compile_fds(files)
        .map_err(|e| e.to_string())?;
    let code = out.join("raid.v1.rs");
    let formatted = std::process::Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(proto.join(".."))
        .arg(&code)
        .status();
    match formatted {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("rustfmt of {} ended with {status}", code.display())),
        Err(e) => Err(format!("rustfmt could not be started: {e}; install it with 'rustup component add rustfmt'")),
    }
}

fn compare(committed: &Path, fresh: &Path) -> Result<(), String> {
    for name in ["raid.v1.rs", "descriptor.bin"] {
        let read = |dir: &Path| fs::read(dir.join(name)).map_err(|e| format!("{}: {e}", dir.join(name).display()));
        let same = match name {
            "raid.v1.rs" => words(&read(committed)?).eq(words(&read(fresh)?)),
            _ => read(committed)? == read(fresh)?,
        };
        if !same {
            return Err(format!(
                "proto/src/generated/{name} is not what proto/raid/v1 says; run 'cargo xtask proto' and commit the result"
            ));
        }
    }
    Ok(())
}

/// Code without what rustfmt decides: another version of it lays the same code out differently.
fn words(code: &[u8]) -> impl Iterator<Item = &u8> {
    code.iter().filter(|b| !b.is_ascii_whitespace() && **b != b',')
}
