"""Which UDF computes which column: kept in field metadata and beside the table, checked before anything changes."""
