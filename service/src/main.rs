//! Redundant arrays in user space, served as NVMe-oF namespaces.
fn main() {}
