"""Views that are queries of Spark: SELECTs in Spark SQL, and DataFrames, over one table."""
