"""Jobs as people see them: history and errors in Lance tables beside the data, handles, results, progress."""
