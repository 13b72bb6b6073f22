"""Views that are queries of Spark: SELECTs in Spark SQL over one table."""
