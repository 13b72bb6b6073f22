"""Values computed elsewhere, brought into a table's columns by their keys: users of the engine."""
