"""Confirm: hints become events by an authenticated read, or end in quarantine."""
