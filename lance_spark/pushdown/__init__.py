"""The planner rule, which gives Lance scans columns, filters and limits, and SQL of predicates."""
