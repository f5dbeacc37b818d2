//! Reactors: pinned threads that poll; mailboxes between them; adaptive sleep.
