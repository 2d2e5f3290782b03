"""The ledger: all SQL of the consumer's own tables. Modules are named for what they keep."""

from consumer.ledger.engine.database import Database

__all__ = ["Database"]
