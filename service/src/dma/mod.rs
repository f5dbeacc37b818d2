//! Pinned buffer memory: one region per reactor, cut into slots; and the only place where a `BufAddr` becomes memory.
