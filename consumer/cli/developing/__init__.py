"""Commands for who develops: dev, demo, sandbox, handlers."""
