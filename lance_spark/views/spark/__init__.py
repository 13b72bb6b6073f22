"""Views with a query of Spark: a SELECT in Spark SQL over one table."""
