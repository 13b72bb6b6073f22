"""Which UDF computes which column, in field metadata and beside the table."""
