//! The control socket: owner-only, one daemon at a time, taken over from a dead one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

/// A bound control socket. Its path is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Device and inode of the socket, so that only our own is removed.
    identity: (u64, u64),
    listener: Option<UnixListener>,
    /// Held for the life of the process: two daemons that start at once must not both find a dead socket and remove
    /// each other's.
    _lock: Flock<File>,
}

impl ControlSocket {
    /// Binds the socket with mode 0600. A path that a live daemon uses is refused; a socket that a dead one left behind
    /// is taken over; anything else at the path is refused.
    pub fn bind(path: &Path) -> Result<ControlSocket, String> {
        let shown = path.display();
        let address = UnixAddr::new(path).map_err(|_| {
            format!("the control socket's path {shown} is longer than the 107 bytes that Unix sockets can have; name a shorter one")
        })?;
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(format!("the control socket {shown} cannot be looked at: {e}")),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(format!("{shown} is there and is no socket; move it away or name another control socket"));
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => return Err(in_use(path)),
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(|e| {
                        format!("{shown} was left behind by a raidd that has died and cannot be removed: {e}")
                    })?;
                    tracing::info!(socket = %shown, "removed the control socket of a raidd that has died");
                }
                Err(e) => {
                    return Err(format!(
                        "{shown} is a socket that cannot be connected to: {e}; remove it if nobody uses it"
                    ));
                }
            },
        }
        let failed = |e: std::io::Error| format!("the control socket {shown} cannot be opened: {e}");
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(|e| failed(e.into()))?;
        bind(fd.as_raw_fd(), &address).map_err(|e| failed(e.into()))?;
        // Between bind and listen nobody can connect, so that no moment exists in which others could.
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        listen(&fd, Backlog::new(64).unwrap_or(Backlog::MAXCONN)).map_err(|e| failed(e.into()))?;
        Ok(ControlSocket { path: path.to_owned(), identity, listener: Some(UnixListener::from(fd)), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listener, for the server; `None` the second time.
    pub(super) fn take(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Nothing is lost if it stays: the next daemon takes it over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|m| (m.dev(), m.ino()))
}

fn in_use(path: &Path) -> String {
    format!(
        "the control socket {} is in use by a raidd that runs; stop that one, or name another socket and other members",
        path.display()
    )
}

/// The lock file beside the socket. It is never removed: a lock on a file that was removed excludes nobody.
fn lock(path: &Path) -> Result<Flock<File>, String> {
    let mut name = path.file_name().ok_or_else(|| format!("{} is no path of a socket", path.display()))?.to_owned();
    name.push(".lock");
    let beside = path.with_file_name(name);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&beside).map_err(|e| {
        format!("{} cannot be opened: {e}; the control socket's folder must exist and be writable", beside.display())
    })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
        nix::errno::Errno::EWOULDBLOCK => in_use(path),
        e => format!("{} cannot be locked: {e}", beside.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a short path (a socket's address has 107 bytes), removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let dir = std::env::temp_dir().join(format!("raidd-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).expect("a folder");
            Folder(dir)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn owner_only_and_gone_at_the_end() {
        let folder = Folder::new("own");
        let path = folder.0.join("control.sock");
        let socket = ControlSocket::bind(&path).expect("bound");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).expect("connected");
        drop(socket);
        assert!(!path.exists());
        ControlSocket::bind(&path).expect("bound again");
    }

    #[test]
    fn a_live_daemons_socket_is_refused() {
        let folder = Folder::new("live");
        let path = folder.0.join("control.sock");
        let socket = ControlSocket::bind(&path).expect("bound");
        let refusal = ControlSocket::bind(&path).expect_err("refused");
        assert!(refusal.contains("in use by a raidd that runs"), "{refusal}");
        UnixStream::connect(&path).expect("the first one still answers");
        drop(socket);
        // A program that is no raidd, and so holds no lock.
        let other = folder.0.join("other.sock");
        let _listener = UnixListener::bind(&other).expect("bound");
        assert!(ControlSocket::bind(&other).expect_err("refused").contains("in use"));
    }

    #[test]
    fn a_dead_daemons_socket_is_taken_over() {
        let folder = Folder::new("dead");
        let path = folder.0.join("control.sock");
        // Dropping a listener leaves its path, as a killed process does.
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let _socket = ControlSocket::bind(&path).expect("taken over");
        UnixStream::connect(&path).expect("connected");
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let folder = Folder::new("file");
        let path = folder.0.join("control.sock");
        fs::write(&path, "precious").expect("written");
        assert!(ControlSocket::bind(&path).expect_err("refused").contains("is no socket"));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
        let missing = folder.0.join("nowhere/control.sock");
        assert!(ControlSocket::bind(&missing).expect_err("refused").contains("must exist"));
        let long = folder.0.join("x".repeat(120));
        assert!(ControlSocket::bind(&long).expect_err("refused").contains("107 bytes"));
    }

    #[test]
    fn another_ones_socket_is_not_removed() {
        let folder = Folder::new("swap");
        let path = folder.0.join("control.sock");
        let socket = ControlSocket::bind(&path).expect("bound");
        fs::remove_file(&path).expect("removed");
        let _other = UnixListener::bind(&path).expect("bound");
        drop(socket);
        assert!(path.exists());
    }
}
