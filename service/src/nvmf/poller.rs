//! The target on one reactor: its connections, its devices, its mail.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use raid_core::units::Tick;

use super::buffers::{Shares, Use};
use super::connection::Connection;
use super::controller::Controller;
use super::devices::Devices;
use super::subsystem::Registry;
use crate::block::Completions;
use crate::dma::Pool;
use crate::reactor::{Context, Mailbox, Poller, Sender};

/// Answers a change.
pub type Ack = mpsc::Sender<Result<(), String>>;

/// What a reactor's target is told.
pub enum Mail {
    /// This is configured from now on.
    Registry(Arc<Registry>, Ack),
    /// Accept connections from this.
    Listen(TcpListener, Ack),
    /// Accept no more connections on this address.
    Unlisten(SocketAddr, Ack),
    /// A connection that another reactor accepted; its first command is in its receive buffer.
    Adopt(Box<Connection>),
    /// Close a controller's I/O queues, and its admin queue too if told so.
    Close {
        /// Which.
        controller: Arc<Controller>,
        /// Close the admin queue too.
        admin: bool,
    },
    /// Close everything.
    Stop(Ack),
}

/// The most connections of one reactor.
const MAX_CONNECTIONS: usize = 4096;
/// Between two looks at all timers, in nanoseconds.
const TICK: u64 = 20_000_000;
/// A listener's token; connections' tokens are their numbers.
const LISTENER: u64 = 1 << 32;
/// Passes after which connections that nobody polls are looked at, while others are busy.
const COLD_LOOK: u64 = 4;

/// What connections share on one reactor.
pub struct Local {
    /// The reactor.
    pub number: usize,
    /// Reactors that serve the target.
    pub reactors: usize,
    /// I/O queues placed so far, over all reactors.
    pub placed: Arc<AtomicUsize>,
    /// Shares of the pool.
    pub shares: Shares,
    /// Devices.
    pub devices: Devices,
    /// What is configured.
    pub registry: Arc<Registry>,
    /// Connections that have something to send.
    pub dirty: Vec<u32>,
    /// Mail to reactors, this one included.
    pub outbox: Vec<(usize, Mail)>,
    /// Scratch: commands whose last byte was sent.
    pub over: Vec<u16>,
    /// Scratch: I/Os that were cancelled.
    pub cancelled: Vec<u64>,
}

/// What a connection works with.
pub struct Env<'a> {
    /// The reactor's buffers.
    pub pool: &'a mut Pool,
    /// What connections share.
    pub local: &'a mut Local,
    /// The time of this pass.
    pub now: Tick,
}

impl Env<'_> {
    /// Tells every reactor to close a controller's queues.
    pub fn close_controller(&mut self, controller: &Arc<Controller>, admin: bool) {
        for reactor in 0..self.local.reactors {
            self.local.outbox.push((reactor, Mail::Close { controller: Arc::clone(controller), admin }));
        }
    }
}

/// See the module's head.
pub struct TargetPoller {
    inbox: Mailbox<Mail>,
    peers: Vec<Sender<Mail>>,
    local: Local,
    epoll: Epoll,
    listeners: Vec<TcpListener>,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Connections whose sockets are read on every pass.
    hot: Vec<u32>,
    /// Registry changes that wait for retired devices.
    acks: Vec<Ack>,
    done: Completions,
    blocked: bool,
    pass: u64,
    next_tick: Tick,
    refused: u64,
}

impl TargetPoller {
    /// The target on reactor `number`.
    pub fn new(
        number: usize,
        inbox: Mailbox<Mail>,
        peers: Vec<Sender<Mail>>,
        placed: Arc<AtomicUsize>,
    ) -> std::io::Result<TargetPoller> {
        let local = Local {
            number,
            reactors: peers.len(),
            placed,
            shares: Shares::new(),
            devices: Devices::default(),
            registry: Arc::default(),
            dirty: Vec::with_capacity(256),
            outbox: Vec::new(),
            over: Vec::with_capacity(super::controller::MAX_ENTRIES as usize),
            cancelled: Vec::new(),
        };
        Ok(TargetPoller {
            inbox,
            peers,
            local,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listeners: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            hot: Vec::with_capacity(256),
            acks: Vec::new(),
            done: Completions::with_capacity(1024),
            blocked: false,
            pass: 0,
            next_tick: Tick(0),
            refused: 0,
        })
    }

    /// Readable when a socket of the target has news.
    pub fn epoll(&self) -> &std::os::fd::OwnedFd {
        &self.epoll.0
    }

    fn mail(&mut self, mail: Mail, cx: &mut Context) {
        match mail {
            Mail::Registry(registry, ack) => {
                if let Err(e) = self.local.devices.follow(&registry, cx) {
                    // The registry stays the old one; the caller sends it again, which closes what was opened.
                    let _ = ack.send(Err(e));
                    return;
                }
                self.local.registry = registry;
                self.each(cx, |connection, env| connection.registry_changed(env));
                self.acks.push(ack);
            }
            Mail::Listen(listener, ack) => {
                let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
                let added = self.epoll.add(&listener, event);
                self.listeners.push(listener);
                let _ = ack.send(added.map_err(|e| format!("the listener cannot be watched: {e}")));
            }
            Mail::Unlisten(addr, ack) => {
                self.listeners.retain(|l| l.local_addr().ok() != Some(addr));
                let _ = ack.send(Ok(()));
            }
            Mail::Adopt(connection) => self.install(connection, cx),
            Mail::Close { controller, admin } => {
                self.each(cx, |connection, env| {
                    if connection.belongs_to(&controller, admin) {
                        connection.close(env);
                    }
                });
            }
            Mail::Stop(ack) => {
                self.each(cx, |connection, env| connection.close(env));
                self.acks.push(ack);
            }
        }
    }

    fn each(&mut self, cx: &mut Context, mut f: impl FnMut(&mut Connection, &mut Env)) {
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        for connection in self.connections.iter_mut().flatten() {
            f(connection, &mut env);
        }
    }

    fn accept(&mut self, cx: &mut Context) {
        for n in 0..self.listeners.len() {
            loop {
                match self.listeners[n].accept() {
                    Ok((socket, peer)) => match Connection::new(socket, peer, cx.now) {
                        Ok(connection) => self.install(Box::new(connection), cx),
                        Err(e) => tracing::debug!(%peer, %e, "a connection was gone before it began"),
                    },
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(e) => {
                        // Out of descriptors, most likely: said at powers of two, because it comes again at once.
                        self.refused += 1;
                        if self.refused.is_power_of_two() {
                            tracing::warn!(%e, times = self.refused, "a connection could not be accepted; check the limit on open files");
                        }
                        break;
                    }
                }
            }
        }
    }

    fn install(&mut self, mut connection: Box<Connection>, cx: &mut Context) {
        if self.free.is_empty() && self.connections.len() >= MAX_CONNECTIONS {
            self.refused += 1;
            if self.refused.is_power_of_two() {
                tracing::warn!(times = self.refused, "a reactor has {MAX_CONNECTIONS} connections and takes no more");
            }
            return;
        }
        let index = self.free.pop().unwrap_or(self.connections.len() as u32);
        connection.index = index;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        if let Err(e) = self.epoll.add(connection.as_fd(), EpollEvent::new(flags, u64::from(index))) {
            tracing::warn!(%e, "a connection cannot be watched and is closed; check the limit on open files");
            self.free.push(index);
            return;
        }
        if index as usize == self.connections.len() {
            self.connections.push(None);
        }
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        // An adopted connection has its Connect in the buffer already.
        connection.resume(&mut env);
        connection.hot = true;
        self.hot.push(index);
        self.connections[index as usize] = Some(connection);
    }

    /// Asks the kernel which sockets have news.
    fn look(&mut self, cx: &mut Context) {
        let mut events = [EpollEvent::empty(); 64];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let mut accept = false;
        for event in &events[..count] {
            let token = event.data();
            if token >= LISTENER {
                accept = true;
                continue;
            }
            let Some(connection) = self.connections.get_mut(token as usize).and_then(Option::as_mut) else { continue };
            let flags = event.events();
            if flags.contains(EpollFlags::EPOLLOUT) && connection.unblock() {
                self.local.dirty.push(token as u32);
            }
            if flags
                .intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
                && !connection.hot
            {
                connection.hot = true;
                self.hot.push(token as u32);
            }
        }
        if accept {
            self.accept(cx);
        }
    }

    fn receive(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        let connections = &mut self.connections;
        let mut moving = Vec::new();
        self.hot.retain(|index| {
            let Some(connection) = connections[*index as usize].as_mut() else { return false };
            worked |= connection.receive(&mut env);
            if connection.wants_to_move() {
                moving.push(*index);
                return false;
            }
            connection.hot
        });
        for index in moving {
            self.send_away(index);
        }
        worked
    }

    /// Gives a connection to the reactor that is to serve its I/O queue.
    fn send_away(&mut self, index: u32) {
        let Some(mut connection) = self.connections[index as usize].take() else { return };
        self.free.push(index);
        // The descriptor lives on, so the kernel does not forget it by itself.
        if let Err(e) = self.epoll.delete(connection.as_fd()) {
            tracing::debug!(%e, "a connection on the move was not watched");
        }
        let to = connection.moved();
        self.local.outbox.push((to, Mail::Adopt(connection)));
    }

    fn complete(&mut self, cx: &mut Context) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let worked = self.local.devices.turn(&mut done);
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        for completion in done.drain(..) {
            let (index, command) = ((completion.tag >> 16) as usize, completion.tag as u16);
            let connection = self.connections[index].as_mut().expect("a connection stays while it has I/O at a device");
            connection.complete(command, completion.status, &mut env);
        }
        self.done = done;
        worked
    }

    /// Gives slots to those who wait.
    fn grant(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        for kind in [Use::Capsule, Use::Ready, Use::Read] {
            for _ in 0..env.local.shares.count_waiting(kind) {
                let Some((index, command)) = env.local.shares.next(kind) else { break };
                let Some(connection) = self.connections[index as usize].as_mut() else { continue };
                if kind == Use::Read && connection.is_behind() {
                    // Its host takes nothing at the moment: its turn comes later, and the others' does not wait for it.
                    env.local.shares.wait(kind, (index, command));
                    continue;
                }
                let Some(progress) = connection.turn(kind, command, &mut env) else {
                    env.local.shares.wait_on(kind, (index, command));
                    break;
                };
                worked |= progress;
                if !connection.hot && progress {
                    connection.hot = true;
                    self.hot.push(index);
                }
            }
        }
        worked
    }

    fn send(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        let now = cx.now;
        let mut env = Env { pool: cx.pool(), local: &mut self.local, now };
        self.blocked = false;
        let mut n = 0;
        while n < env.local.dirty.len() {
            let index = env.local.dirty[n];
            n += 1;
            if let Some(connection) = self.connections[index as usize].as_mut() {
                worked |= connection.flush(&mut env);
                self.blocked |= connection.is_blocked();
                // The host took something, so a connection that was stopped for being behind may be read again.
                if connection.wants_reading() && !connection.hot {
                    connection.hot = true;
                    self.hot.push(index);
                }
            }
        }
        env.local.dirty.clear();
        worked
    }

    fn tick(&mut self, cx: &mut Context) {
        if cx.now < self.next_tick {
            return;
        }
        self.next_tick = cx.now.after(TICK);
        self.each(cx, |connection, env| connection.tick(env));
        for index in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[index]
                && connection.is_closed()
                && connection.at_device() == 0
            {
                connection.drained();
                self.connections[index] = None;
                self.free.push(index as u32);
            }
        }
    }

    fn post(&mut self) {
        let mut stay = Vec::new();
        for (to, mail) in self.local.outbox.drain(..) {
            if let Err(mail) = self.peers[to].try_send(mail) {
                stay.push((to, mail));
            }
        }
        self.local.outbox = stay;
    }
}

impl Poller for TargetPoller {
    fn name(&self) -> &str {
        "nvmf"
    }

    fn poll(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while let Some(mail) = self.inbox.try_recv() {
            self.mail(mail, cx);
            worked = true;
        }
        self.pass += 1;
        if self.hot.is_empty() || self.blocked || self.pass.is_multiple_of(COLD_LOOK) {
            self.look(cx);
        }
        worked |= self.receive(cx);
        if self.local.shares.any_waiting() {
            worked |= self.grant(cx);
        }
        worked |= self.complete(cx);
        if !self.local.dirty.is_empty() {
            worked |= self.send(cx);
        }
        self.tick(cx);
        if !self.local.outbox.is_empty() {
            self.post();
        }
        if !self.acks.is_empty() && self.local.devices.reap() {
            for ack in self.acks.drain(..) {
                // The caller may have gone.
                let _ = ack.send(Ok(()));
            }
        }
        worked
    }

    fn next_deadline(&self) -> Option<Tick> {
        let timers = self.connections.iter().flatten().filter_map(|c| c.next_deadline());
        // Timers are looked at once a tick, so waking up earlier is of no use.
        let timers = timers.min().map(|t| t.max(self.next_tick));
        // Whoever holds what others wait for is looked at, whether anything comes or not.
        let waiting = self.local.shares.any_waiting().then_some(self.next_tick);
        timers.into_iter().chain(waiting).chain(self.local.devices.next_deadline()).min()
    }
}
