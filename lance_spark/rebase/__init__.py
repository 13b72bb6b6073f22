"""Values at the latest version: where rows were, whose inputs changed, what is carried over."""
