"""What concurrent commits mean for results: identities, history, row lineage, verdicts."""
