"""The simulated service itself: a state machine on a clock. It knows nothing of HTTP."""
