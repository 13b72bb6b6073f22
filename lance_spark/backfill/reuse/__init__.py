"""Values of earlier runs: records, checkpoints, and the present places of their rows."""
