"""A point names a function of the product by its place; one that has moved is found here, and not in the slow tests."""

from __future__ import annotations

import pytest

from tests.crash.points import SYNC_POINTS, Point, place_of
from tests.crash.test_killed_at_any_step_of_the_work import EMBEDDED, KAFKA
from tests.crash.test_killed_where_what_follows_is_taken import POINTS as ONWARD


@pytest.mark.parametrize(
    "point", [*EMBEDDED, *KAFKA, *ONWARD, *SYNC_POINTS], ids=lambda point: f"{point.target}-{point.when}"
)
def test_a_point_is_a_function(point: Point) -> None:
    holder, name = place_of(point)
    assert callable(getattr(holder, name))
