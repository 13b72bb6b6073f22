"""The devices of this machine: :func:`list_devices`."""

from __future__ import annotations

import functools
import os
import subprocess

from udf_runtime.execute.isolation.devices import DEVICE_VARIABLES

_NVIDIA_FOLDER = "/proc/driver/nvidia/gpus"
_ANSWER_S = 30


def list_devices() -> tuple[str, ...]:
    """Returns the ids of the GPUs that this process may use, for `CUDA_VISIBLE_DEVICES`.

    The first of `CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` and `ZE_AFFINITY_MASK` in the
    environment names the devices; an empty value names none. Without these variables, `nvidia-smi`
    or the driver's folder in `/proc` lists the NVIDIA devices.

    Example:
        >>> import os
        >>> from udf_runtime.execute.isolation.device_list import list_devices
        >>> os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
        >>> list_devices()
        ('2', '3')
        >>> del os.environ["CUDA_VISIBLE_DEVICES"]
    """
    visible = next((os.environ[name] for name in DEVICE_VARIABLES if name in os.environ), None)
    return _list_nvidia() if visible is None else _split_ids(visible)


def _split_ids(text: str) -> tuple[str, ...]:
    """Splits a value of `CUDA_VISIBLE_DEVICES`. CUDA ignores ids after -1."""
    ids = [device.strip() for device in text.split(",")]
    end = ids.index("-1") if "-1" in ids else len(ids)
    return tuple(device for device in ids[:end] if device)


@functools.cache
def _list_nvidia() -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ANSWER_S)  # noqa: S603 - a fixed command
    except (OSError, subprocess.SubprocessError):
        return tuple(str(number) for number in range(_count_in_proc()))
    return tuple(answer.stdout.split())


def _count_in_proc() -> int:
    try:
        return len(os.listdir(_NVIDIA_FOLDER))
    except OSError:
        return 0
