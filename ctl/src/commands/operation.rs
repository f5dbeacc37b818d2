//! `raidctl operation`.

use raid_proto::names::Name;
use raid_proto::v1;

use super::Context;
use crate::cli::Operation;
use crate::error::Result;
use crate::output;
use crate::progress::{Tell, follow};
use crate::view;

pub async fn run(cx: &Context, command: Operation) -> Result<()> {
    match command {
        Operation::List => output::print(cx.format, &list(cx).await?, |list| output::operations(list)),
        Operation::Watch { ids } => {
            let ids = named_or_running(cx, ids).await?;
            follow(&cx.client, ids, cx.format, Tell::All, None).await
        }
        Operation::Wait { ids, timeout } => {
            let ids = named_or_running(cx, ids).await?;
            follow(&cx.client, ids, cx.format, Tell::Ends, timeout).await
        }
        Operation::Cancel { id } => {
            let request_id = cx.client.request_id();
            let name = Name::Operation(id.strip_prefix("operations/").unwrap_or(&id).to_owned()).to_string();
            let request = v1::CancelOperationRequest { request_id, name };
            let operation = cx.client.operations().cancel_operation(request).await?.into_inner();
            output::print(cx.format, &view::Operation::from(operation), |o| output::operation_line(o) + "\n")
        }
    }
}

async fn list(cx: &Context) -> Result<Vec<view::Operation>> {
    Ok(cx.client.list_operations().await?.into_iter().map(Into::into).collect())
}

async fn named_or_running(cx: &Context, ids: Vec<String>) -> Result<Vec<String>> {
    if !ids.is_empty() {
        return Ok(ids);
    }
    let running: Vec<String> = list(cx).await?.into_iter().filter(|o| !o.ended()).map(|o| o.id).collect();
    if running.is_empty() && cx.format == crate::cli::Format::Table {
        eprintln!("no operation is running");
    }
    Ok(running)
}
