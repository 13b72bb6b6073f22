"""Environments of UDFs on Spark: storage of manifests, and their way to executors."""
