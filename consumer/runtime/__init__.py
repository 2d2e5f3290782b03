"""Runtime: how a part of a role is kept going, and led by one process at a time."""
