"""The look: which test runs which line, taken once before mutants are played."""
