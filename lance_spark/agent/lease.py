"""The lease of an agent on a table: :class:`Lease`.

Several agents can watch a table. The agent with the lease runs its jobs. The lease is a key in the
configuration of the history of jobs. Each change of the lease is a commit of Lance, a conditional
put: exactly one of two concurrent agents wins. After a long pause of a machine, or with clocks more
than :data:`RENEWAL_S` apart, two agents may have a lease at once. Their jobs commit as any two
jobs, and some rows are computed twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lance_spark.dataset import DatasetRef
from lance_spark.errors import LanceSparkError, TableNotFoundError
from lance_spark.jobs.history import every, is_gone, this_process
from lance_spark.jobs.tables import JOBS, change_config, refuse_links, table_ref
from lance_spark.staging.processes import DriverProcess
from lance_spark.stored_json import load_object

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)

LEASE_KEY = "lance-spark.agent"
LEASE_S = 90.0
"""Seconds of a lease without renewal, until another machine's agent takes over."""

RENEWAL_S = 30.0


class Lease:
    """The lease of an agent on a table. Renewed in a thread until :meth:`release`.

    Attributes:
        ref: The table.
        owner: Identity of the agent.
        holder: The process of the other agent with the lease, else no text.
    """

    def __init__(self, ref: DatasetRef, owner: str) -> None:
        self.ref = ref
        self.owner = owner
        self.holder = ""
        self._renewals = ExitStack()

    def take(self) -> bool:
        """Takes the lease unless another agent has it.

        Raises:
            LanceSparkError: The store refused.
        """
        if not self._write(until=time.time() + LEASE_S):
            return False
        self._renewals.enter_context(every(RENEWAL_S, self._renew))
        return True

    def release(self) -> None:
        """Ends the lease. If the store fails, the lease ends by its time."""
        self._renewals.close()
        try:
            self._write(until=0.0)
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "the lease of an agent on %s could not be released: %s", self.ref.uri, error
            )

    def _renew(self) -> None:
        try:
            if not self._write(until=time.time() + LEASE_S):
                _LOG.warning(
                    "the agent of %s took over %s while a job of this agent runs",
                    self.holder,
                    self.ref.uri,
                )
        except (OSError, LanceSparkError) as error:
            _LOG.warning(
                "the lease of an agent on %s could not be renewed: %s", self.ref.uri, error
            )

    def _write(self, *, until: float) -> bool:
        """Writes the lease. Returns false if another agent has the lease."""
        lease = json.dumps({"owner": self.owner, "process": this_process(), "until": until})
        is_mine = True

        def write(head: lance.LanceDataset) -> dict[str, str] | None:
            nonlocal is_mine
            self.holder = _find_holder(head.config(), but=self.owner)
            is_mine = not self.holder
            return {LEASE_KEY: lease} if is_mine else None

        change_config(self.ref, JOBS, write)
        return is_mine


def find_agent(ref: DatasetRef) -> str:
    """Returns the process whose agent runs jobs of a table, else no text.

    Raises:
        TableUnwritableError: A link is in the way.
        TableUnreadableError: The store refused.
    """
    history = table_ref(ref, JOBS)
    refuse_links(history)
    try:
        return _find_holder(history.open_latest().config())
    except TableNotFoundError:
        return ""


def _find_holder(config: Mapping[str, Any], *, but: str | None = None) -> str:
    """Returns the machine and the number of the process with a valid lease, else no text.

    The lease of the owner `but` does not count.
    """
    try:
        values = load_object(
            config.get(LEASE_KEY, "{}"), {"owner": str, "process": str, "until": (int, float)}
        )
        process = DriverProcess.from_json(values["process"])
    except (ValueError, OverflowError):
        return ""  # no lease, or a forged lease
    # A lease beyond the longest time is forged, or of a wrong clock.
    is_over = not time.time() < values["until"] <= time.time() + 2 * LEASE_S
    if values["owner"] == but or is_over or is_gone(process):
        return ""
    return f"process {process.pid} of {process.host}"
