"""UDF processes with devices: an idle process makes room for another UDF, and a death frees the device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests.support.device_processes import ROWS, make_udf, request_of, run
from udf_runtime import UDF
from udf_runtime.execute import UdfRunner
from udf_runtime.execute.isolation.process import ProcessSpec


def test_an_idle_process_serves_its_udf_again_and_makes_room_for_another():
    devices, first, second = request_of(), make_udf(1), make_udf(2)
    pid = run(first, devices)
    assert run(first, devices) == pid
    other = run(second, devices)
    assert other != pid
    assert not psutil.pid_exists(pid)
    assert psutil.pid_exists(other)


@pytest.mark.long
def test_processes_with_shares_stay_side_by_side_and_the_longest_idle_makes_room():
    devices = request_of(0.5)
    first, second = (run(make_udf(number), devices) for number in (1, 2))
    assert psutil.pid_exists(first)
    third = run(make_udf(3), devices)
    assert not psutil.pid_exists(first)
    assert len({first, second, third}) == 3
    assert run(make_udf(2), devices) == second


@pytest.mark.long
def test_a_busy_process_keeps_its_device_until_the_end_of_its_task():
    devices, ends = request_of(), []

    def run_and_note(function: UDF) -> None:
        run(function, devices)
        ends.append(function.name)

    with UdfRunner(make_udf(1), processes=ProcessSpec(devices=devices)) as runner:
        results = runner.run([ROWS] * 20)
        next(results)
        thread = threading.Thread(target=run_and_note, args=(make_udf(2),))
        thread.start()
        assert len(list(results)) == 19
        assert ends == []
    thread.join(60)
    assert ends == ["place2"]


@pytest.mark.long
def test_a_killed_process_frees_its_device():
    devices = request_of()
    pid = run(make_udf(1), devices)
    os.kill(pid, signal.SIGKILL)
    assert run(make_udf(1), devices) != pid
    with UdfRunner(make_udf(1), processes=ProcessSpec(devices=devices)) as runner:
        results = runner.run([ROWS] * 3)
        busy = int(next(results).values[0].as_py().partition(":")[0])
        os.kill(busy, signal.SIGKILL)
        pids = {
            value.partition(":")[0] for result in results for value in result.values.to_pylist()
        }
        assert str(busy) not in pids


OTHER_SESSION = """
import sys, time
from tests.support.device_processes import DeviceRequest, make_udf, run
print(run(make_udf(1), DeviceRequest(candidates=(sys.argv[1],))), flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_an_idle_process_of_another_session_makes_room():
    devices = request_of()
    session = subprocess.Popen(
        [sys.executable, "-c", OTHER_SESSION, devices.candidates[0]],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert session.stdout is not None
        pid = int(session.stdout.readline())
        began_s = time.monotonic()
        assert run(make_udf(1), devices) != pid
        assert time.monotonic() - began_s < 60
        assert not psutil.pid_exists(pid)
        assert session.poll() is None
    finally:
        session.kill()
        session.communicate()
