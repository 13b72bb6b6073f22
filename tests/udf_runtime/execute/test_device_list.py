"""The devices of a machine: from variables, from nvidia-smi, from the folder of the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from udf_runtime.execute.isolation import devices
from udf_runtime.execute.isolation.devices import DEVICE_VARIABLES, list_devices


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a device, and its only folder of programs."""
    for name in DEVICE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(devices, "_NVIDIA_FOLDER", str(tmp_path / "gpus"))
    devices._list_nvidia.cache_clear()
    return tmp_path


def make_nvidia_smi(programs: Path, script: str) -> None:
    path = programs / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("0", ("0",)),
        (" 2, 3 ", ("2", "3")),
        ("GPU-1f,MIG-a/0/1", ("GPU-1f", "MIG-a/0/1")),
        ("1,-1,2", ("1",)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_a_variable_names_the_devices(
    value: str, ids: tuple[str, ...], programs: Path, monkeypatch: pytest.MonkeyPatch
):
    make_nvidia_smi(programs, "echo 7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", value)
    assert list_devices() == ids
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert list_devices() == ("5",)


def test_nvidia_smi_lists_the_devices_and_is_asked_once(programs: Path):
    make_nvidia_smi(programs, 'echo "$@" >> "${0%/*}/asked"; echo 0; echo 1')
    assert list_devices() == list_devices() == ("0", "1")
    assert (programs / "asked").read_text().splitlines() == [
        "--query-gpu=index --format=csv,noheader"
    ]


@pytest.mark.parametrize("script", [None, "exit 9"])
def test_the_folder_of_the_driver_counts_the_devices_without_nvidia_smi(
    script: str | None, programs: Path
):
    if script is not None:
        make_nvidia_smi(programs, script)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (programs / "gpus" / name).mkdir(parents=True)
    assert list_devices() == ("0", "1")


def test_a_machine_without_devices_has_none():
    assert list_devices() == ()
