"""Lance namespaces: catalogs that name tables, tell their locations, and vend credentials."""
