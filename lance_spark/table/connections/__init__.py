"""Connections: folders and Lance namespaces with tables."""
