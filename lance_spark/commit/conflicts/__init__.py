"""What concurrent commits mean for results that were computed before: identities, history, row lineage, verdicts."""
