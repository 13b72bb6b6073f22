"""Options of reads, writes and statements."""
