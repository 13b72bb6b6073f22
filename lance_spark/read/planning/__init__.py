"""Plans of scans: columns, filters and partitions of a pinned version."""
