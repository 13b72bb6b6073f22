"""Procedures of a SQL catalog."""
