"""Jobs as people see them: handles, results, progress, and history and errors in Lance tables."""
