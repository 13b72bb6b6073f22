"""Tests that need an NVIDIA GPU with torch, CuPy and JAX. On other machines, pytest finds none of them."""

from udf_runtime.execute.isolation.devices import list_devices

collect_ignore_glob = [] if list_devices() else ["test_*.py"]
