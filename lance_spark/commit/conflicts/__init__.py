"""Effects of concurrent commits on results: identities, history, row lineage, verdicts."""
