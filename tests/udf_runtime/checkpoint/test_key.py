"""Digests of keys and sources."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from udf_runtime.checkpoint import CheckpointKey, source_digest

KEY = CheckpointKey(
    udf_name="embed", udf_version="1", inputs=(3, 5), output_type="list<item: float>"
)


def test_the_digest_is_the_same_in_every_process_and_release() -> None:
    assert KEY.digest == "664c9cbf0b60817c89c07ab9379c4ca3"
    assert (
        source_digest(["data/a.lance:1,2", "overlay b.lance:1"])
        == "f276a1f8db475db416c1cd9efa0f548a"
    )
    code = "from udf_runtime.checkpoint import *; print(CheckpointKey(udf_name='embed', udf_version='1', inputs=(3, 5), "
    code += "output_type='list<item: float>').digest)"
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert process.stdout.strip() == KEY.digest


@pytest.mark.parametrize(
    "changed_key",
    [
        replace(KEY, udf_name="embed2"),
        replace(KEY, udf_version="2"),
        replace(KEY, inputs=(5, 3)),
        replace(KEY, inputs=(35,)),
        replace(KEY, output_type="list<item: double>"),
        replace(KEY, environment=""),
        replace(KEY, environment="None"),
        replace(KEY, udf_name="embed1", udf_version=""),
        replace(KEY, udf_name='embed","1', udf_version=""),
    ],
)
def test_every_field_matters_and_none_runs_into_the_next(changed_key: CheckpointKey) -> None:
    assert changed_key.digest != KEY.digest


def test_sources_depend_on_every_file_and_their_order() -> None:
    digests = {
        source_digest(files)
        for files in ([], [""], ["a", "b"], ["b", "a"], ["ab"], ["a,b"], ['a","b'])
    }
    assert len(digests) == 7


def test_a_key_and_a_source_of_the_same_text_differ() -> None:
    assert (
        source_digest([])
        != CheckpointKey(udf_name="", udf_version="", inputs=(), output_type="").digest
    )
