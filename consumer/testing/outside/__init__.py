"""Outside: what `ctx.http` is on the workbench: it records every request and answers as it is told, 200 by default."""

from consumer.testing.outside.answer import Answer, Request, Trouble
from consumer.testing.outside.session import SAFE, Outside

__all__ = ["SAFE", "Answer", "Outside", "Request", "Trouble"]
