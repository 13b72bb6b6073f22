"""Pushed-down aggregates: counts, sums, minima and maxima, with and without groups."""
