"""Events as the default authenticity `api` gives them: confirmed by an authenticated read, and so proof by themselves.
What `signature` gives, and what is asked then, is in `test_signed_orders.py`."""

from __future__ import annotations

from functools import partial

from consumer.events import Trust
from tests.support.handling import projections

said = partial(projections.said, trust=Trust.READ)
