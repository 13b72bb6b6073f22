"""Structured streaming: Lance tables as targets of streaming queries."""
