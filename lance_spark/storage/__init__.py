"""Bytes and calls on the stores of Lance: object stores and local folders."""
