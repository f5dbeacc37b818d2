//! Counters and histograms, recorded per reactor without locks and merged when read.
