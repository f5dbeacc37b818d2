//! Simulated drives and clock around raid-core; workloads, fault plans and checkers.
fn main() {}
