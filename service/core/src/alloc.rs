//! Assignment of extents to groups: a pure function over free space and roles.
