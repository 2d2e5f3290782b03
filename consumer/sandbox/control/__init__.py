"""The control addresses under /_sandbox/: for people and tests, loopback only."""
