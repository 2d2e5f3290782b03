"""Invariants: every micro-USDC explained, every access with its source."""
