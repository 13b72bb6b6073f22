"""Environments of UDFs on Spark: where manifests are kept, and how executors get at them."""
