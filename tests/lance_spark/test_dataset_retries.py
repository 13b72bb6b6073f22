"""Stores that give no answer, and the locks of the processes that ask the stores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from lance_spark import dataset_retries
from lance_spark.errors import TableUnreadableError

GONE = {
    "aws_endpoint": "http://127.0.0.1:1",
    "allow_http": "true",
    "aws_region": "x",
    "aws_access_key_id": "x",
    "aws_secret_access_key": "x",
    "client_max_retries": "0",
}

LOCKS_AFTER_A_FORK = """
import importlib, os, pkgutil, sys, threading
import lance_spark, udf_runtime

def locks():
    for name, module in list(sys.modules.items()):
        if name.startswith(("lance_spark", "udf_runtime")):
            for key, value in vars(module).items():
                if isinstance(value, type(threading.Lock())):
                    yield f"{name}.{key}", value

for package in (lance_spark, udf_runtime):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
held = dict(locks())
for lock in held.values():
    lock.acquire()
child = os.fork()
if child == 0:
    print(len(held), *(name for name, lock in locks() if lock.locked()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)  # the locks are held still
"""


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    dataset_retries._silent.clear()
    yield
    dataset_retries._silent.clear()


def test_each_caller_of_a_store_without_an_answer_gets_an_error_of_its_own() -> None:
    errors = []
    for _ in range(3):
        with pytest.raises(TableUnreadableError, match="does not answer") as caught:
            dataset_retries.retry_options("s3://no-bucket/t.lance", GONE)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3 and len({str(error) for error in errors}) == 1


def test_no_lock_of_a_module_is_held_after_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCKS_AFTER_A_FORK], check=True, capture_output=True, text=True, timeout=60
    )
    number, *held = done.stdout.split()
    assert int(number) >= 6 and held == []
