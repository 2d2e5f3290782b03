"""Network: who is connected with, and where a transactional handler does so."""
