"""Values at the latest version: where rows were, whose inputs changed, and files that carry values."""
