"""The table of faults is whole. Each was noticed within a minute, or five where only a late order shows it."""

from __future__ import annotations

import pytest

from tests.faults.rows.every import EMBEDDED, SERVERS
from tests.faults.rows.versions import LEFT_BEHIND_S
from tests.faults.scene import WITHIN_S, Fault
from tests.faults.table import noticed_s

LATE_S = 300.0


# case: O2
@pytest.mark.parametrize(("on", "rows"), [("embedded", EMBEDDED), ("servers", SERVERS)])
def test_each_row_stands_in_the_table_and_was_noticed_in_time(on: str, rows: tuple[Fault, ...]) -> None:
    assert len(rows) >= 50
    assert [one.name for one in rows if noticed_s(one.name, on) is None] == []
    assert {one.name: took for one in rows if (took := noticed_s(one.name, on)) and took > one.within_s} == {}


def test_only_what_shows_in_nothing_sooner_may_take_longer() -> None:
    longer = {one.name: one.within_s for one in (*EMBEDDED, *SERVERS) if one.within_s > WITHIN_S}
    assert longer == {
        "API tells nobody that an order was paid": LATE_S,  # a late order
        "serve left behind by a deploy": LEFT_BEHIND_S,  # before that it may be a deploy, and nothing is late
    }
