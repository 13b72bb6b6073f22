"""Environments of UDFs: manifests, and the code that builds environments on a machine."""
