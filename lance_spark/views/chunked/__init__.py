"""Views whose rows a chunker makes of each row of their source."""
