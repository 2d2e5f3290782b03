"""Commands that look: status, doctor, events, explain, find, invariants, audit."""
