"""Every role and dependency, in every way it may fail, is a row that was played, or it is said why there is none."""

from __future__ import annotations

from tests.faults.pairs import KINDS, PAIRS
from tests.faults.rows.every import EMBEDDED, SERVERS
from tests.faults.scene import ROLES
from tests.faults.table import PAGE, noticed_s, pairs_table


def test_each_pair_has_its_rows_and_each_of_them_was_played() -> None:
    assert set(PAIRS) == {*ROLES, "log, a file", "ledger, a file", "Kafka", "PostgreSQL", "API"}
    scenes = {"embedded": {one.name for one in EMBEDDED}, "servers": {one.name for one in SERVERS}}
    for subject, kinds in PAIRS.items():
        assert tuple(kinds) == KINDS, subject
        for played in kinds.values():
            for name in played if isinstance(played, tuple) else ():
                where = [on for on, names in scenes.items() if name in names]
                assert where, name
                assert [on for on in where if noticed_s(name, on) is None] == [], name


def test_the_page_shows_them() -> None:
    assert pairs_table() in PAGE.read_text(), "python -m tests.faults --pairs"
