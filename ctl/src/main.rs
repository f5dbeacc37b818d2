//! The command line of raidd's control plane.
fn main() {}
