//! The commands, each from its arguments to what it prints.

mod array;
mod export;
mod member;
mod operation;
mod system;
mod volume;

use member::member_name;
use std::io::{BufRead, IsTerminal, Write};

use crate::cli::{Arguments, Command, Format, VolumeName};
use crate::client::Client;
use crate::error::{Exit, Failure, Result};
use crate::progress::{self, Tell};
use crate::view::Operation;

/// What every command has at hand.
pub struct Context {
    /// The connection.
    pub client: Client,
    /// How to print.
    pub format: Format,
    /// Do not ask.
    pub yes: bool,
}

/// Does what the command line says.
pub async fn run(arguments: Arguments) -> Result<()> {
    let (format, yes) = (arguments.output, arguments.yes);
    match arguments.command {
        Command::Completion { shell } => return system::completion(shell),
        Command::Man { dir } => return system::man(dir.as_deref()),
        _ => {}
    }
    let client = Client::connect(arguments.server, arguments.request_id).await?;
    let cx = Context { client, format, yes };
    match arguments.command {
        Command::Status => system::status(&cx).await,
        Command::Array(command) => array::run(&cx, command).await,
        Command::Member(command) => member::run(&cx, command).await,
        Command::Volume(command) => volume::run(&cx, command).await,
        Command::Export(command) => export::run(&cx, command).await,
        Command::Operation(command) => operation::run(&cx, command).await,
        Command::Events(events) => system::events(&cx, events).await,
        Command::Fault(command) => system::fault(&cx, command).await,
        Command::Completion { .. } | Command::Man { .. } => Ok(()),
    }
}

impl Context {
    /// Asks before data is destroyed; without a terminal only `--yes` will do.
    fn confirm(&self, what: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Failure::new(Exit::Refused, format!("this would {what}; add --yes if that is meant")));
        }
        eprint!("This would {what}. Go on? [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::new(Exit::Refused, "not confirmed; nothing was done")),
        }
    }

    /// Waits for all operations of an array.
    async fn wait_for_array(&self, array: &str) -> Result<()> {
        let belongs = |o: &Operation| o.target.split(['/', ' ']).next() == Some(array);
        let operations = self.client.list_operations().await?.into_iter().map(Operation::from);
        let ids = operations.filter(|o| !o.ended() && belongs(o)).map(|o| o.id).collect();
        self.wait_for(ids).await
    }

    async fn wait_for(&self, ids: Vec<String>) -> Result<()> {
        // What is printed at the end is the command's own answer; a record of each operation would spoil it.
        let tell = Tell::Bars;
        progress::follow(&self.client, ids, self.format, tell, None).await
    }
}

/// `ARRAY VOLUME` or `ARRAY/VOLUME`.
fn volume_of(name: &VolumeName) -> Result<(String, String)> {
    let pair = match &name.volume {
        Some(volume) => Some((name.array.as_str(), volume.as_str())),
        None => name.array.split_once('/'),
    };
    match pair {
        Some((array, volume))
            if !array.is_empty() && !volume.is_empty() && !format!("{array}{volume}").contains('/') =>
        {
            Ok((array.to_owned(), volume.to_owned()))
        }
        _ => Err(Failure::new(
            Exit::Usage,
            format!("'{}' names no volume; write ARRAY VOLUME or ARRAY/VOLUME", name.array),
        )),
    }
}

/// A path as raidd must get it: its working directory is another one. What has a scheme is no path.
fn address(path: &str) -> Result<String> {
    let scheme = path.split_once(':').is_some_and(|(s, _)| s.len() > 1 && s.bytes().all(|b| b.is_ascii_alphanumeric()));
    if scheme {
        return Ok(path.to_owned());
    }
    let absolute = std::path::absolute(path)
        .map_err(|e| Failure::new(Exit::Usage, format!("'{path}' is not a path: {e}; name a file or block device")))?;
    absolute.into_os_string().into_string().map_err(|_| {
        Failure::new(Exit::Usage, format!("the folder of '{path}' has a name that is not UTF-8; give an absolute path"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_in_two_ways() {
        let name = |array: &str, volume: Option<&str>| {
            volume_of(&VolumeName { array: array.into(), volume: volume.map(str::to_owned) })
        };
        let pair = ("pool".to_owned(), "data".to_owned());
        assert_eq!(name("pool", Some("data")).expect("a name"), pair);
        assert_eq!(name("pool/data", None).expect("a name"), pair);
        for (array, volume) in [("pool", None), ("pool/", None), ("pool/a/b", None), ("pool/a", Some("b"))] {
            assert_eq!(name(array, volume).expect_err("refused").exit, Exit::Usage);
        }
    }

    #[test]
    fn paths_become_absolute() {
        assert_eq!(address("/dev/sdb").expect("a path"), "/dev/sdb");
        assert!(address("member-0").expect("a path").ends_with("/member-0"));
        assert!(address("./raidd-data/new").expect("a path").starts_with('/'));
        assert_eq!(address("pci:0000:01:00.0").expect("an address"), "pci:0000:01:00.0");
    }
}
