"""Messages between a task and the process of its UDF."""
