//! A volume as a block device: requests cut at shard boundaries and carried to the engines that own them.
