"""The planner rule that gives Lance scans their columns, filters and limits, and its translation of predicates."""
