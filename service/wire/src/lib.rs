//! NVMe and NVMe-oF structures with the specification's names: PDUs, commands, completions, identify data, log pages.
