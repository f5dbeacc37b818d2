//! GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (11Dh), generator 2: the field of the second parity.
