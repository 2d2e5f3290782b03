"""The audit trail as a chain: sealed, exported, verified."""
