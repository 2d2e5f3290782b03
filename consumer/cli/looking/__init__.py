"""Commands that look: status, events, explain, doctor."""
