//! The process: command line, configuration, state directory, quick start, demo, orderly stop.
