//! The NVMe/TCP target. It knows block devices and nothing of what is behind them.
