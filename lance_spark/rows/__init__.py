"""Rows of one fragment: sets of them, addresses, streams of values, and reading of inputs."""
