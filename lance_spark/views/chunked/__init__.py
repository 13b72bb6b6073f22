"""Views with the rows that a chunker makes from each row of their source."""
