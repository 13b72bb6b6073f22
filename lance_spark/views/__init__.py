"""Materialized views: tables that are made of a query over another table, and kept up to date."""
