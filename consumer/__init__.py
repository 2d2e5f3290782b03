"""Webhook consumer and fulfilment worker for the payments service (v1 API)."""

DISTRIBUTION = "payments-consumer"
__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, looked up when somebody asks for it: reading what is installed imports a mail parser."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree that is not installed
        found = "0+unknown"
    globals()[name] = found
    return found
