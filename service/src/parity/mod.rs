//! Parity kernels: XOR, P+Q, delta update and recovery as linear combinations over GF(2^8), with run-time dispatch.
