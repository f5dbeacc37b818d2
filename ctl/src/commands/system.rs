//! `raidctl status`, `events`, `fault`, and what needs no daemon.

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use raid_proto::prost_types;
use raid_proto::v1;
use raid_proto::v1::watch_response::Change;
use serde::Serialize;

use super::{Context, member_name};
use crate::cli::{self, Arguments, Events, Fault, FaultAdd, Kind};
use crate::error::{Exit, Failure, Result};
use crate::output;
use crate::view;

/// Prints that a change without an answer is done.
pub fn done(cx: &Context, message: &str) -> Result<()> {
    #[derive(Serialize)]
    struct Done<'a> {
        message: &'a str,
    }
    output::print(cx.format, &Done { message }, |d| format!("{}\n", d.message))
}

pub async fn status(cx: &Context) -> Result<()> {
    let status = view::Status {
        daemon: cx.client.system().get_system(v1::GetSystemRequest {}).await?.into_inner().into(),
        arrays: cx.client.list_arrays().await?.into_iter().map(Into::into).collect(),
        exports: cx.client.list_exports().await?.into_iter().map(Into::into).collect(),
        operations: cx.client.list_operations().await?.into_iter().map(Into::into).collect(),
    };
    output::print(cx.format, &status, output::status)
}

pub async fn events(cx: &Context, arguments: Events) -> Result<()> {
    if !arguments.follow {
        let all = cx.client.list_events().await?;
        let skipped = all.len().saturating_sub(arguments.lines as usize);
        let list: Vec<view::Event> = all.into_iter().skip(skipped).map(Into::into).collect();
        return output::print(cx.format, &list, |list| list.iter().map(|e| output::event_line(e) + "\n").collect());
    }
    let request = v1::WatchRequest { history: arguments.lines, resources: false, array: String::new() };
    let mut stream = cx.client.events().watch(request).await?.into_inner();
    while let Some(response) = stream.message().await? {
        match response.change {
            Some(Change::Event(event)) => {
                output::print_item(cx.format, &view::Event::from(event), output::event_line)?;
            }
            Some(Change::Missed(missed)) => {
                eprintln!("raidctl: was too slow and missed {}", output::count(missed.events, "event"))
            }
            _ => {}
        }
    }
    Err(Failure::new(Exit::Unavailable, "raidd has closed the stream of events"))
}

pub async fn fault(cx: &Context, command: Fault) -> Result<()> {
    let mut service = cx.client.faults();
    match command {
        Fault::Add(arguments) => {
            let request = v1::AddFaultRequest {
                request_id: cx.client.request_id(),
                member: member_name(cx, &arguments.member).await?,
                spec: Some(spec(&arguments)),
            };
            let fault = service.add_fault(request).await?.into_inner();
            output::print(cx.format, &view::Fault::from(fault), |f| {
                format!("fault {} is in force: {} on {} of {}\n", f.number, f.effect, f.on.join(","), f.member)
            })
        }
        Fault::List => {
            let list: Vec<view::Fault> = cx.client.list_faults().await?.into_iter().map(Into::into).collect();
            output::print(cx.format, &list, |list| output::faults(list))
        }
        Fault::Clear { number } => {
            let name = number.map(|n| raid_proto::names::Name::Fault(n).to_string()).unwrap_or_default();
            let request = v1::ClearFaultsRequest { request_id: cx.client.request_id(), name };
            let cleared = service.clear_faults(request).await?.into_inner().cleared;
            done(cx, &format!("removed {}", output::count(cleared.into(), "fault")))
        }
    }
}

fn spec(arguments: &FaultAdd) -> v1::FaultSpec {
    use v1::fault_spec::Effect;
    let effect = match (arguments.error, arguments.delay) {
        (Some(error), _) => {
            let error = match error {
                cli::FaultError::Media => v1::FaultError::Media,
                cli::FaultError::Device => v1::FaultError::Device,
                cli::FaultError::NoSpace => v1::FaultError::NoSpace,
                cli::FaultError::Timeout => v1::FaultError::Timeout,
            };
            Effect::Error(error.into())
        }
        (None, Some(delay)) => {
            Effect::Delay(prost_types::Duration { seconds: delay.as_secs() as i64, nanos: delay.subsec_nanos() as i32 })
        }
        (None, None) => Effect::Corruption(v1::FaultCorruption {}),
    };
    let on = |kind| arguments.kinds.contains(&kind);
    v1::FaultSpec {
        // Corruption is of reads; it need not be said.
        read: on(Kind::Read) || (arguments.corrupt && arguments.kinds.is_empty()),
        write: on(Kind::Write),
        flush: on(Kind::Flush),
        offset_bytes: arguments.offset,
        length_bytes: arguments.length.unwrap_or(0),
        effect: Some(effect),
    }
}

/// Completions go to standard output.
pub fn completion(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "raidctl", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

/// The manual: one page to standard output, or all pages into a folder.
pub fn man(dir: Option<&Path>) -> Result<()> {
    match dir {
        None => Ok(clap_mangen::Man::new(Arguments::command()).render(&mut std::io::stdout())?),
        Some(dir) => {
            let failed =
                |e| Failure::new(Exit::Other, format!("the pages cannot be written to {}: {e}", dir.display()));
            fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(Arguments::command(), dir).map_err(failed)
        }
    }
}
