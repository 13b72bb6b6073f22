"""Rows of one fragment: sets of them, their addresses, streams of their values, and reading their inputs."""
