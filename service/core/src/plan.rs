//! How a write to a stripe is carried out: one pure function.
