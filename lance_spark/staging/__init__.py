"""Files that belong to no version yet: who wrote them, what is in them, and when they go."""
