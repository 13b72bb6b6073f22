"""Jobs for their users: handles, results, progress, and history and errors in Lance tables."""
