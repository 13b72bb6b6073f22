"""What a backfill has to do: checks, fragments, ranges and tasks, and the plan that people read."""
