"""The table of faults is whole. Each was noticed within a minute."""

from __future__ import annotations

import pytest

from tests.faults.rows.every import EMBEDDED, SERVERS
from tests.faults.scene import WITHIN_S, Fault
from tests.faults.table import noticed_s


# case: O2
@pytest.mark.parametrize(("on", "rows"), [("embedded", EMBEDDED), ("servers", SERVERS)])
def test_each_row_stands_in_the_table_and_was_noticed_in_time(on: str, rows: tuple[Fault, ...]) -> None:
    assert len(rows) >= 50
    assert [one.name for one in rows if noticed_s(one.name, on) is None] == []
    assert {one.name: took for one in rows if (took := noticed_s(one.name, on)) and took > WITHIN_S} == {}
