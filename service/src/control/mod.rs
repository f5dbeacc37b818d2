//! The control plane: raid.v1 over a Unix socket, metrics and the status page, on a runtime of their own.
