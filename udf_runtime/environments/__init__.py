"""Environments of UDFs: manifests that describe them, and what makes them on a machine."""
