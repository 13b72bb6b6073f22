"""Values on the latest version: where rows came from, which of their inputs changed, and column files that carry values over."""
