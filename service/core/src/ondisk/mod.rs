//! Superblocks and configuration slots, byte by byte.
