"""The pytest plugin: fixtures for handler authors. Costs a project that does not use them one small import.

`workbench`                  builds events, runs handlers on a temporary ledger, drives time, shows what came of it
`assert_idempotent`          the function of `consumer.testing` of that name
`assert_order_independent`   likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from consumer.testing.workbench import Workbench


@pytest.fixture
def workbench() -> Iterator[Workbench]:
    """A fresh ledger, a clock that stands still until it is driven, and an outside that records what it is told."""
    from consumer.testing.workbench import Workbench

    with Workbench() as found:
        yield found


@pytest.fixture(name="assert_idempotent")
def _assert_idempotent() -> Callable[..., None]:
    """Put a handler through repetitions; see `consumer.testing.assert_idempotent`."""
    from consumer.testing.assertions import assert_idempotent

    return assert_idempotent


@pytest.fixture(name="assert_order_independent")
def _assert_order_independent() -> Callable[..., None]:
    """Put a handler through every order; see `consumer.testing.assert_order_independent`."""
    from consumer.testing.assertions import assert_order_independent

    return assert_order_independent
