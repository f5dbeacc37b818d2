//! Load generator, drive probe, tables: measures raidd and any other NVMe/TCP target alike.
fn main() {}
