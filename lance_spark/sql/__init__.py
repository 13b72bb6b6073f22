"""SQL on Lance tables: a catalog, statements that change rows, procedures."""
