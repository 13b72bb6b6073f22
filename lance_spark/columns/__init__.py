"""Columns and their UDFs, in field metadata and next to the table."""
