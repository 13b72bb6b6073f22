"""Metrics of jobs, commits and requests for OpenTelemetry. Without its SDK, nothing is measured.

A program that sets a meter provider of OpenTelemetry's SDK gets the metrics of this package, and of
Lance's requests to stores. This module never imports the SDK in such a program, and never sets a
provider there. In Python processes of Spark, the environment variables of OpenTelemetry configure a
provider, if `OTEL_METRICS_EXPORTER` is set.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lance_spark.errors import CommitConflictError, CommitOutcomeUnknownError
from lance_spark.lance_compat import is_spark_worker

_LOG = logging.getLogger(__name__)

EXPORTER_VARIABLE = "OTEL_METRICS_EXPORTER"
"""Environment variable of OpenTelemetry. Here it asks Python processes of Spark for metrics."""

_API, _SDK = "opentelemetry.metrics", "opentelemetry.sdk.metrics"
_NAME = "lance_spark"


@dataclass(slots=True)
class _Process:
    """What this process has done for metrics.

    Attributes:
        is_configured: Whether the environment variables were read.
        observes_store: Whether Lance counts its requests.
    """

    is_configured: bool = False
    observes_store: bool = False


_process = _Process()


def observe_store() -> None:
    """Lets Lance count requests, bytes and errors, once a meter provider exists. Never raises."""
    if _process.observes_store or not _has_provider():
        return
    _process.observes_store = True
    try:
        from lance.otel import instrument_lance_metrics

        instrument_lance_metrics()
    except Exception as error:  # noqa: BLE001 - metrics must not fail a read
        _LOG.warning("Lance's requests are not measured: %s", error)


def record_job(
    job_type: str,
    status: str,
    *,
    seconds: float,
    rows: Mapping[str, int],
    retries: int,
    fragments: int,
) -> None:
    """Records the end of a job. `rows` are numbers of rows by outcome."""
    instruments = _instruments()
    if instruments is None:
        return
    about = {f"{_NAME}.job.type": job_type}
    ended = {**about, f"{_NAME}.job.status": status}
    instruments.jobs.add(1, ended)
    instruments.job_duration.record(seconds, ended)
    instruments.job_retries.add(retries, about)
    instruments.job_fragments.add(fragments, about)
    for outcome, count in rows.items():
        instruments.job_rows.add(count, {**about, f"{_NAME}.row.outcome": outcome})


@contextlib.contextmanager
def measure_commit(retries: Callable[[], int]) -> Iterator[None]:
    """Records the outcome, the time and the retries of a commit."""
    began, outcome = time.monotonic(), "failed"
    try:
        yield
        outcome = "committed"
    except CommitConflictError:
        outcome = "conflict"
        raise
    except CommitOutcomeUnknownError:
        outcome = "unknown"
        raise
    finally:
        instruments = _instruments()
        if instruments is not None:
            about = {f"{_NAME}.commit.outcome": outcome}
            instruments.commits.add(1, about)
            instruments.commit_duration.record(time.monotonic() - began, about)
            instruments.commit_retries.add(retries())


@dataclass(frozen=True, slots=True)
class _Instruments:
    jobs: Any
    job_duration: Any
    job_rows: Any
    job_fragments: Any
    job_retries: Any
    commits: Any
    commit_duration: Any
    commit_retries: Any


def _instruments() -> _Instruments | None:
    return _make_instruments() if _has_provider() else None


@functools.cache
def _make_instruments() -> _Instruments:
    meter = sys.modules[_API].get_meter("lance-spark")
    counter, histogram = meter.create_counter, meter.create_histogram
    return _Instruments(
        jobs=counter(f"{_NAME}.jobs", "{job}", "Ended jobs"),
        job_duration=histogram(f"{_NAME}.job.duration", "s", "Time of jobs"),
        job_rows=counter(f"{_NAME}.job.rows", "{row}", "Rows of jobs"),
        job_fragments=counter(f"{_NAME}.job.fragments", "{fragment}", "Finished fragments of jobs"),
        job_retries=counter(f"{_NAME}.job.retries", "{retry}", "Retried calls and commits of jobs"),
        commits=counter(f"{_NAME}.commits", "{commit}", "Commits to tables"),
        commit_duration=histogram(
            f"{_NAME}.commit.duration", "s", "Time of commits with their retries"
        ),
        commit_retries=counter(f"{_NAME}.commit.retries", "{retry}", "Retried commits"),
    )


def _has_provider() -> bool:
    """Tells whether this process has a meter provider of the SDK."""
    if not _process.is_configured and is_spark_worker():
        _process.is_configured = True
        _configure()
    sdk, api = sys.modules.get(_SDK), sys.modules.get(_API)
    return (
        sdk is not None
        and api is not None
        and isinstance(api.get_meter_provider(), sdk.MeterProvider)
    )


def _configure() -> None:
    """Makes a meter provider in a Python process of Spark, as the environment variables say."""
    names = [name.strip() for name in os.environ.get(EXPORTER_VARIABLE, "").split(",")]
    names = [name for name in names if name not in ("", "none")]
    if not names:
        return
    try:
        provider = import_module("opentelemetry.sdk.metrics").MeterProvider(
            [_make_reader(name) for name in names]
        )
        import_module("opentelemetry.metrics").set_meter_provider(provider)
    except Exception as error:  # noqa: BLE001 - metrics must not fail a task
        _LOG.warning("%s has no effect: %s", EXPORTER_VARIABLE, error)


def _make_reader(name: str) -> Any:  # noqa: ANN401 - a class of the SDK
    """Returns the reader of an exporter, by its name in the environment variables.

    Raises:
        LookupError: No installed package has the exporter.
    """
    from importlib.metadata import entry_points  # imports the parser of e-mails

    exporters = {
        entry.name: entry for entry in entry_points(group="opentelemetry_metrics_exporter")
    }
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").partition("/")[0]
    prefixes = (f"otlp_proto_{protocol}",) if name == "otlp" else ()
    candidates = sorted(
        candidate for candidate in exporters if candidate == name or candidate.startswith(prefixes)
    )
    if not candidates:
        raise LookupError(f"no installed package exports metrics to {name!r}")
    exporter = exporters[candidates[0]].load()()
    export = import_module("opentelemetry.sdk.metrics.export")
    return (
        exporter
        if isinstance(exporter, export.MetricReader)
        else export.PeriodicExportingMetricReader(exporter)
    )


def _forget_process() -> None:
    """Forgets the state after a fork: threads of an exporter belong to the parent."""
    _process.is_configured = _process.observes_store = False


os.register_at_fork(after_in_child=_forget_process)
