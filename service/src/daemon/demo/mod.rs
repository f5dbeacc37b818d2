//! The demo: the whole thing in a temporary directory. raidd serves, and plays initiator against itself over NVMe/TCP.

mod load;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use nvme_wire::tcp::Digests;

use super::backend::Control;
use super::cli::{Common, Demo, Polling};
use super::machine::Daemon;
use super::process::{self, Process};
use super::quick;
use crate::control::backend::{Backend, MemberState, NewDevice, OperationState, VolumeState};
use crate::nvmf::initiator::Initiator;
use load::{Figures, Load};

/// I/Os in flight in each measurement.
const DEPTH: u16 = 32;
/// Bytes of a sequential I/O.
const LARGE: u32 = 128 << 10;

/// A directory that is gone at the end.
struct Directory {
    path: PathBuf,
    keep: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.keep {
            println!("kept {}", self.path.display());
        } else if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("raidd: {} could not be removed: {e}", self.path.display());
        }
    }
}

/// `raidd demo`.
pub fn run(options: &Demo) -> Result<(), String> {
    // The demo fails a member on purpose and says so itself.
    process::log("off");
    let path = std::env::temp_dir().join(format!("raidd-demo-{}", std::process::id()));
    std::fs::create_dir_all(&path)
        .map_err(|e| format!("{} cannot be created: {e}; set TMPDIR to a folder with 4 GiB of room", path.display()))?;
    let directory = Directory { path, keep: options.keep };
    let common = Common {
        http: "none".to_string(),
        reactors: None,
        cores: Vec::new(),
        polling: Polling::Adaptive,
        buffer_mib: 48,
        scratch_mib: 8,
        assembly_wait: 5,
        enable_faults: false,
        volatile_cache: None,
        volatile_cache_lies: false,
    };
    process::runtime()?.block_on(async {
        let control = directory.path.join("control.sock");
        let process = Process::start(common, &directory.path.join("state"), &control).await?;
        let result = play(&process.daemon, &directory.path, options).await;
        let end = process.end().await;
        result.and(end)
    })
}

async fn play(daemon: &Arc<Daemon>, dir: &Path, options: &Demo) -> Result<(), String> {
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    // Port 0 is not kept by the state, so a free one is looked for first.
    let port =
        std::net::TcpListener::bind(listen).and_then(|l| l.local_addr()).map_err(|e| format!("no free port: {e}"))?;
    for line in quick::set_up(daemon, dir, port).await? {
        println!("{line}");
    }
    let control = Control(daemon.clone());
    let connect = move || {
        Initiator::connect(port, quick::NQN, "nqn.2026-11.dev.raidd:demo-host", 2, DEPTH, Digests::default())
            .map_err(|e| format!("the demo's initiator cannot connect: {e}"))
    };
    let mut load = Load::new(on_thread(connect).await?)?;
    let bytes = u64::from(options.mib) << 20;
    let seconds = Duration::from_secs(options.seconds);
    let mut table = Vec::new();

    let mut step = |title: &'static str, figures: Figures| {
        println!("  {title}: {}", figures.sentence());
        table.push((title, figures));
    };
    println!(
        "\nhealthy: {} MiB written in {} KiB pieces, read back and compared; always {DEPTH} I/Os in flight",
        options.mib,
        LARGE >> 10
    );
    step("sequential write", with(&mut load, move |l| l.write_all(bytes, LARGE, 1)).await?);
    step("sequential read, compared", with(&mut load, move |l| l.verify_all(bytes, LARGE)).await?);
    step("random 4 KiB write", with(&mut load, move |l| l.random(bytes, 4096, false, seconds)).await?);
    step("random 4 KiB read, compared", with(&mut load, move |l| l.random(bytes, 4096, true, seconds)).await?);

    println!("\nmember 1 fails");
    control.fail_member(quick::ARRAY, 1).await.map_err(|e| e.to_string())?;
    expect_state(&control, VolumeState::Degraded)?;
    step("degraded read, compared", with(&mut load, move |l| l.verify_all(bytes, LARGE)).await?);
    step("degraded 4 KiB write", with(&mut load, move |l| l.random(bytes, 4096, false, seconds)).await?);

    println!("\nmember 1 is replaced by a new file; the rebuild runs while 4 KiB reads go on");
    let device = NewDevice {
        address: dir.join("replacement").display().to_string(),
        wipe: false,
        create_size: Some(quick::MEMBER_BYTES),
    };
    let operation = control.replace_member(quick::ARRAY, 1, Some(device)).await.map_err(|e| e.to_string())?;
    let begin = Instant::now();
    let watching = tokio::spawn(watch(control.clone(), operation));
    let during = with(&mut load, move |l| l.random(bytes, 4096, true, seconds)).await?;
    let rebuilt = watching.await.map_err(|e| format!("the progress bar failed: {e}"))??;
    println!(
        "  rebuild: a volume of {} MiB redundant again after {:.1} s; what was never written needed nothing",
        rebuilt >> 20,
        begin.elapsed().as_secs_f64()
    );
    step("4 KiB read during rebuild, compared", during);
    expect_state(&control, VolumeState::Healthy)?;

    println!("\nhealthy again");
    step("sequential read after rebuild, compared", with(&mut load, move |l| l.verify_all(bytes, LARGE)).await?);
    with(&mut load, |l| l.disconnect().map(|()| Figures::default())).await?;
    print_table(&table);
    println!("every block that was read was compared with what was written: no difference");
    Ok(())
}

/// Blocking work beside the control plane's thread.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| format!("the demo's load panicked: {e}"))?
}

async fn with(
    load: &mut Load,
    work: impl FnOnce(&mut Load) -> Result<Figures, String> + Send + 'static,
) -> Result<Figures, String> {
    let mut own = load.take();
    let (result, own) = on_thread(move || {
        let result = work(&mut own);
        Ok((result, own))
    })
    .await?;
    *load = own;
    result
}

fn expect_state(control: &Control, wanted: VolumeState) -> Result<(), String> {
    let array = control.arrays().into_iter().find(|a| a.name == quick::ARRAY);
    let volume = array.as_ref().and_then(|a| a.volumes.first());
    match volume {
        Some(v) if v.state == wanted => {
            let failed = array.iter().flat_map(|a| &a.members).filter(|m| m.state == MemberState::Failed).count();
            println!("  the volume is {}, failed members: {failed}", wanted.word());
            Ok(())
        }
        Some(v) => Err(format!("the volume should be {} and is {}: {}", wanted.word(), v.state.word(), v.reason)),
        None => Err("the volume is gone".to_string()),
    }
}

/// Shows an operation as a bar until it ends; gives the bytes that it did.
async fn watch(control: Control, id: String) -> Result<u64, String> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("  rebuild {wide_bar} {percent:>3}% {bytes}/{total_bytes} {eta}");
    bar.set_style(style.map_err(|e| e.to_string())?);
    // Where no bar can be drawn, a line for each quarter shows that it goes on.
    let mut quarter = 1;
    loop {
        let Some(operation) = control.operations().into_iter().find(|o| o.id == id) else {
            return Err(format!("the rebuild {id} is gone"));
        };
        bar.set_length(operation.total);
        bar.set_position(operation.done);
        while bar.is_hidden() && quarter <= 4 && operation.done >= operation.total / 4 * quarter && operation.total > 0
        {
            println!("  rebuild: {} %", quarter * 25);
            quarter += 1;
        }
        match operation.state {
            OperationState::Running | OperationState::Paused => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            OperationState::Succeeded => {
                bar.finish();
                return Ok(operation.done);
            }
            _ => return Err(format!("the rebuild ended as {:?}: {}", operation.state, operation.reason)),
        }
    }
}

fn print_table(rows: &[(&str, Figures)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "MiB/s", "IOPS", "mean", "p50", "p99", "p99.9", "max"]);
    for (title, figures) in rows {
        let us = |n: u64| format!("{:.0} µs", n as f64 / 1e3);
        let h = &figures.latency;
        table.add_row([
            (*title).to_string(),
            format!("{:.0}", figures.mib_per_s()),
            format!("{:.0}", figures.iops()),
            us(h.mean() as u64),
            us(h.value_at_quantile(0.5)),
            us(h.value_at_quantile(0.99)),
            us(h.value_at_quantile(0.999)),
            us(h.max()),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\nlatencies with {DEPTH} I/Os in flight:");
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
    println!();
}
