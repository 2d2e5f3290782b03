"""Checks: what a command asks of the service and of the set-up: doctor, discovery, certificate."""
