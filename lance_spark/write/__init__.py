"""Writes of rows and columns into Lance tables: the tasks' work, and its commit."""
