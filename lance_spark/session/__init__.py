"""Spark sessions: how they are configured, made where there is none, and what their workers run."""
