"""The command `lance-spark` with leases of agents that end after seconds."""

from __future__ import annotations

from lance_spark.agent import lease
from lance_spark.cli import main

LEASE_S = 6.0

if __name__ == "__main__":
    lease.LEASE_S, lease.RENEWAL_S = LEASE_S, 1.0
    main()
