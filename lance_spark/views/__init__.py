"""Materialized views: tables that a refresh fills from a query over another table."""
