"""Indexes of tables: built by Spark's tasks, committed beside other writers, listed and kept up."""
