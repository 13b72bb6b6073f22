"""Rows of one fragment: row sets, row addresses, streams of values, and input columns."""
