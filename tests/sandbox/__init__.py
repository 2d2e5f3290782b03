"""Tests of the sandbox: every X case of the catalogue."""
