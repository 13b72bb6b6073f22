"""Spark sessions: their configuration, their creation, and their Python workers."""
