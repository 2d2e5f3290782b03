"""Webhook consumer and fulfilment worker for the payments service (v1 API)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("payments-consumer")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
