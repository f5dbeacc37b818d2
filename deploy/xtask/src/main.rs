//! The project's chores: tests, guest, generated code.
fn main() {}
