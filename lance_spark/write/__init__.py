"""Writes rows and columns into Lance tables: what tasks do, and what they hand to the committer."""
