"""Queries over one table: filters, vector search, full-text search, and batches of vectors."""
