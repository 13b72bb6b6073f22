"""The facade of one table: :class:`~lance_spark.table.table.Table`, and how it is shown."""
