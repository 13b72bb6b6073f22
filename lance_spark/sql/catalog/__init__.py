"""The catalog of Spark SQL: its namespaces, its tables and their definitions."""
