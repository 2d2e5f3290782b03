"""Refresh: the reads that handlers asked for."""
