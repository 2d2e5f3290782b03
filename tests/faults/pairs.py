"""Pairs: each role and each thing it depends on, with each way it may fail, and which rows play that. Where none does,
why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

KINDS: Final = (
    "dead",
    "hung",
    "refused",
    "slow",
    "full",
    "replaced",
    "with wrong credentials",
    "of a wrong version",
)
NOTHING_OF_ITS_OWN = "what fills up is the log's or the ledger's disk; lines for a full stderr are lost and counted"
FILES_ASK_NOBODY = "a file has no login: who may not open it is told as one that cannot be opened"
FILE_IN_SLOW_MOTION = "no disk here can be slowed; `PostgreSQL slow` shows what is said of an answer that takes long"

Played = tuple[str, ...]
PAIRS: Final[Mapping[str, Mapping[str, Played | str]]] = {
    "serve": {
        "dead": ("serve dead", "serve stopped and forgotten"),
        "hung": ("serve hung",),
        "refused": ("webhooks go nowhere",),
        "slow": ("serve slow",),
        "full": NOTHING_OF_ITS_OWN,
        "replaced": ("serve with another topic prefix", "serve with another log"),
        "with wrong credentials": ("webhooks signed with another secret",),
        "of a wrong version": ("serve left behind by a deploy",),
    },
    "work": {
        "dead": ("work dead", "work stopped and forgotten", "work dies again and again"),
        "hung": ("work hung",),
        "refused": ("work without a way to PostgreSQL",),
        "slow": ("work slow",),
        "full": NOTHING_OF_ITS_OWN,
        "replaced": ("work with another topic prefix", "work with another log", "work without the plugin fulfilment"),
        "with wrong credentials": ("work with another password of PostgreSQL",),
        "of a wrong version": (
            "work of a version whose tables were migrated away",
            "work of a version too old for the schema",
            "work of a version whose migration was not run",
        ),
    },
    "sync": {
        "dead": ("sync dead", "sync stopped and forgotten"),
        "hung": ("sync hung",),
        "refused": ("sync without a way to PostgreSQL",),
        "slow": ("sync slow",),
        "full": NOTHING_OF_ITS_OWN,
        "replaced": ("sync with another topic prefix", "sync with another log", "API of another application"),
        "with wrong credentials": ("sync with another password of PostgreSQL", "API with wrong credentials"),
        "of a wrong version": (
            "sync of a version whose tables were migrated away",
            "sync of a version too old for the schema",
        ),
    },
    "console": {
        "dead": ("console dead", "console stopped and forgotten"),
        "hung": ("console hung",),
        "refused": "who asks it is refused, and sees it; no order waits for it",
        "slow": ("console slow",),
        "full": NOTHING_OF_ITS_OWN,
        "replaced": "it uses no topic, and another's console shows another's ledger to who asks",
        "with wrong credentials": ("console with another password of PostgreSQL",),
        "of a wrong version": (
            "console of a version whose tables were migrated away",
            "console of a version too old for the schema",
        ),
    },
    "log, a file": {
        "dead": ("log removed",),
        "hung": ("log locked",),
        "refused": ("log cannot be opened", "log on a read-only disk"),
        "slow": FILE_IN_SLOW_MOTION,
        "full": ("log on a full disk",),
        "replaced": ("log replaced", "log put back from a backup", "log damaged"),
        "with wrong credentials": FILES_ASK_NOBODY,
        "of a wrong version": ("log of another version",),
    },
    "ledger, a file": {
        "dead": ("ledger removed",),
        "hung": ("ledger locked",),
        "refused": ("ledger cannot be opened", "ledger on a read-only disk"),
        "slow": FILE_IN_SLOW_MOTION,
        "full": ("ledger on a full disk",),
        "replaced": ("ledger replaced by an empty one", "ledger damaged"),
        "with wrong credentials": FILES_ASK_NOBODY,
        "of a wrong version": ("ledger of an incompatible version",),
    },
    "Kafka": {
        "dead": ("Kafka dead",),
        "hung": ("Kafka hung",),
        "refused": ("Kafka refused",),
        "slow": ("Kafka slow (8 s an answer)",),
        "full": ("Kafka on a full disk", "Kafka with one of its two disks full"),
        "replaced": ("Kafka replaced by an empty one", "Kafka without topic events"),
        "with wrong credentials": (
            "Kafka with another password",
            "Kafka by a mechanism it does not take",
            "Kafka with another certificate",
        ),
        "of a wrong version": "no broker so old or new is at hand: one that says so is asked in `faults/alone/`",
    },
    "PostgreSQL": {
        "dead": ("PostgreSQL dead",),
        "hung": ("PostgreSQL hung", "PostgreSQL with a table locked"),
        "refused": ("PostgreSQL refused", "PostgreSQL with too many connections (53300)"),
        "slow": ("PostgreSQL slow (1 s an answer)",),
        "full": ("PostgreSQL on a full disk (53100)",),
        "replaced": ("PostgreSQL replaced by an empty one", "PostgreSQL without the database (3D000)"),
        "with wrong credentials": (
            "PostgreSQL with another password (28P01)",
            "PostgreSQL lets the user in no more (28000)",
            "PostgreSQL without a grant to write (42501)",
        ),
        "of a wrong version": ("PostgreSQL of an incompatible version",),
    },
    "API": {
        "dead": ("API refused",),
        "hung": ("API hung",),
        "refused": ("API refused",),
        "slow": ("API slow (30 s an answer)",),
        "full": ("API answers 429", "API answers 503"),
        "replaced": ("API of another application", "API answers HTML"),
        "with wrong credentials": ("API with wrong credentials", "API with an empty secret file"),
        "of a wrong version": ("API of another version",),
    },
}
