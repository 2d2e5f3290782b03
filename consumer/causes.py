"""Causes: what a server or a file says, in its own code, and what that is here: our error, the operator's sentence and
the cure. One table, so that no cause is named differently in two places, and none is called `internal`.

PostgreSQL speaks SQLSTATE (by code, or by its class of two characters), SQLite primary result codes, Kafka the names
that aiokafka gives its error codes.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from consumer import errors
from consumer.errors import BrokerError, ConsumerError, LedgerError

E = TypeVar("E", LedgerError, BrokerError)


@dataclass(frozen=True)
class Cause:
    """`error`'s code is ours, its docstring the sentence; `cure`: what mends it."""

    error: type[ConsumerError]
    cure: str

    @property
    def sentence(self) -> str:
        """What is wrong, for an operator."""
        return (self.error.__doc__ or "").strip().splitlines()[0]


_SERVER = Cause(errors.DatabaseNotUp, "wait until the server is up; its own log says what keeps it")
_LOGIN = Cause(errors.DatabaseLoginRefused, "put user and password of CONSUMER_DATABASE_URL right, or pg_hba.conf")
_FORBIDDEN = Cause(
    errors.DatabaseForbidden,
    "GRANT it to the user of CONSUMER_DATABASE_URL; `consumer db upgrade` wants the tables' owner",
)
_FULL = Cause(
    errors.LedgerDiskFull,
    "make room on the database's disk; where it has room, and is a file, in the folder for temporary files "
    "(SQLITE_TMPDIR, TMPDIR, /var/tmp); nothing needs a restart",
)
_READ_ONLY = Cause(errors.LedgerReadOnly, "make it writable, or point CONSUMER_DATABASE_URL at the primary")
_LOCKED = Cause(errors.LedgerLocked, "find who holds the lock: a backup, a shell, a long transaction, a hung role")
_TIMEOUTS: Final = "raise the server's statement_timeout and transaction_timeout, or unset them for this user"
_CLOSED = Cause(
    errors.LedgerNotOpened, "check path and permissions of the file and its folder, for the user of the role"
)
INPUT_OUTPUT: Final = "SQLITE_IOERR"
_DISK = (
    "see in the kernel's log what fails: the disk, its mount, a quota; it goes on by itself when that is mended, "
    "else move the files to another disk"
)
_FAILING = Cause(errors.LedgerDiskFailing, _DISK)
_CORRUPT = Cause(
    errors.LedgerCorrupt,
    "see in the kernel's log whether the disk can be read; if it can, restore the ledger from a backup "
    "(a file: without the old `-wal`), then `consumer backfill --since` its time",
)
_AWAY = Cause(
    errors.LedgerUnavailable,
    "see whether the server runs and the network lets us to it; of a file: whether its disk answers",
)

SAID_CHARS: Final = 200
DEADLOCK: Final = "40P01"
SAYS_WHICH: Final = ("08P01", "42501", "42P07")
"""Of these the server's own words tell what it is about: its limits and our tables by name, no value."""
LOST: Final = "08"
"""The class of a connection that is lost, or cannot be made."""
SQLSTATES: Final[Mapping[str, Cause]] = {
    "3D000": Cause(errors.DatabaseUnknown, "create the database, or put the name in CONSUMER_DATABASE_URL right"),
    "3F000": Cause(
        errors.SchemaNowhere, "CREATE SCHEMA what the user's search_path names, and GRANT CREATE, USAGE on it"
    ),
    "28000": _LOGIN,
    "28P01": _LOGIN,
    "42501": _FORBIDDEN,
    "42P07": Cause(
        errors.DatabaseShared, "CREATE DATABASE for it, or CREATE SCHEMA and ALTER ROLE … SET search_path for its user"
    ),
    "08P01": Cause(
        errors.PoolerRefuses, "see its own log; PgBouncer may pool sessions or transactions, not statements"
    ),
    "25006": _READ_ONLY,
    "53100": _FULL,
    "53300": Cause(errors.DatabaseTooManyClients, "raise max_connections, or put a pooler in between"),
    "55P03": _LOCKED,
    "57014": Cause(errors.StatementCancelled, _TIMEOUTS),
    "25P04": Cause(errors.StatementCancelled, _TIMEOUTS),
    "57P01": _SERVER,
    "57P03": _SERVER,
    "58030": _FAILING,
    "XX001": _CORRUPT,
    "XX002": _CORRUPT,
    LOST: _AWAY,
}
SQLITE: Final[Mapping[str, Cause]] = {
    "SQLITE_FULL": _FULL,
    INPUT_OUTPUT: _FAILING,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_CANTOPEN": _CLOSED,
    "SQLITE_PERM": _CLOSED,
    "SQLITE_CORRUPT": _CORRUPT,
    "SQLITE_NOTADB": _CORRUPT,
}
_LOG_CORRUPT = Cause(
    errors.LogCorrupt,
    "see in the kernel's log whether the disk can be read; if it can, stop the roles, move the file away, start them; "
    "then `consumer reconcile`",
)
_LOG_CLOSED = Cause(
    errors.LogNotOpened, "check path and permissions of the file and its folder, for the user of the role"
)
_LOG_LOCKED = Cause(errors.LogLocked, "find which process holds the file: a backup, a shell")
SQLITE_LOG: Final[Mapping[str, Cause]] = {
    "SQLITE_FULL": Cause(errors.LogDiskFull, "make room on the log's disk; nothing needs a restart"),
    INPUT_OUTPUT: Cause(errors.LogDiskFailing, _DISK),
    "SQLITE_READONLY": Cause(errors.LogReadOnly, "make the file and its folder writable for the user of the role"),
    "SQLITE_BUSY": _LOG_LOCKED,
    "SQLITE_LOCKED": _LOG_LOCKED,
    "SQLITE_CANTOPEN": _LOG_CLOSED,
    "SQLITE_PERM": _LOG_CLOSED,
    "SQLITE_CORRUPT": _LOG_CORRUPT,
    "SQLITE_NOTADB": _LOG_CORRUPT,
}
_MOUNT = "see in the kernel's log whether the disk failed, mount it writable, then restart the roles"
READ_ONLY_DISK: Final[Mapping[type[ConsumerError], Cause]] = {
    errors.LedgerNotOpened: Cause(errors.LedgerDiskReadOnly, _MOUNT),
    errors.LedgerReadOnly: Cause(errors.LedgerDiskReadOnly, _MOUNT),
    errors.LedgerDiskFailing: Cause(errors.LedgerDiskReadOnly, _MOUNT),
    errors.LogNotOpened: Cause(errors.LogDiskReadOnly, _MOUNT),
    errors.LogReadOnly: Cause(errors.LogDiskReadOnly, _MOUNT),
    errors.LogDiskFailing: Cause(errors.LogDiskReadOnly, _MOUNT),
}
"""What SQLite says of a file on a disk that is mounted read-only: it can make none of its own beside it, or, where it
became so since, write to none."""
BESIDE_BYTES: Final = 64 * 1024
"""Less room than what SQLite lays beside a file that is opened: the index of its write-ahead file."""
LOG_INCOMPATIBLE: Final = Cause(
    errors.LogIncompatible, "run the version that wrote it, or put CONSUMER_BROKER_URL right"
)
_VERSION = Cause(errors.BrokerIncompatible, "run brokers of Apache Kafka 3 or 4")
_SASL = Cause(errors.BrokerLoginRefused, "put CONSUMER_KAFKA_SASL_USERNAME, _PASSWORD and _MECHANISM right")
_REPLICAS = Cause(errors.LogNotReplicated, "bring the missing brokers back: fewer replicas are in sync than needed")
KAFKA: Final[Mapping[str, Cause]] = {
    "InvalidReplicationFactorError": _REPLICAS,
    "TopicAuthorizationFailedError": Cause(
        errors.TopicForbidden, "grant the topic: kafka-acls.sh --add --allow-principal … --operation … --topic …"
    ),
    "GroupAuthorizationFailedError": Cause(
        errors.GroupForbidden, "grant the group: kafka-acls.sh --add --allow-principal … --operation READ --group …"
    ),
    "ClusterAuthorizationFailedError": Cause(
        errors.ClusterForbidden, "grant IDEMPOTENT_WRITE and DESCRIBE on the cluster, or create the topics by hand"
    ),
    "SaslAuthenticationFailed": _SASL,
    "UnsupportedSaslMechanismError": _SASL,
    "IllegalSaslStateError": _SASL,
    "IncompatibleBrokerVersion": _VERSION,
    "NotImplementedError": _VERSION,
    "UnsupportedVersionError": _VERSION,
    "UnsupportedCodecError": Cause(
        errors.LogCompressed,
        "set compression.type=producer on the topic; for what lies there, install the package cramjam beside the roles",
    ),
    "UnknownTopicOrPartitionError": Cause(errors.TopicUnknown, "restart a role: it makes what is missing"),
}
"""Too few replicas and a broker's lost disk are not among them: a producer that counts its records asks again for ever,
so a publish ends when its time is over, and `inspect` says what is wrong with the topic."""
NO_TLS: Final = "rejected SSL upgrade"
NO_AUTHORITY: Final = "root certificate file"
"""asyncpg has no kind of error for these two."""
NONE_FITS: Final = "TargetServerAttributeNotMatched"
"""What asyncpg raises where no host of the URL is what its `target_session_attrs` asks for: none is the primary now."""
TLS: Final = Cause(errors.BrokerTlsFailed, "check CONSUMER_KAFKA_CA_FILE, the certificate's names and its dates")
NOT_UTF8: Final = Cause(
    errors.DatabaseNotUtf8,
    "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move the ledger there (backup.md)",
)
SLOW: Final = Cause(errors.LedgerSlow, "see what the server is busy with, and the network between")
COLLATION: Final = Cause(
    errors.CollationChanged,
    "stop the roles; REINDEX DATABASE, then ALTER DATABASE … REFRESH COLLATION VERSION; `consumer invariants`",
)
REPLICA: Final = Cause(
    errors.LedgerAwaitsReplica,
    "bring the replica back, or take it out of synchronous_standby_names and reload; nothing needs a restart",
)
DATABASE_TLS: Final = Cause(
    errors.DatabaseTlsFailed, "check the server's certificate, its names and dates, and PGSSLROOTCERT, who signs it"
)


def every() -> Iterator[Cause]:
    """Each cause once, for the operator's table."""
    tables: tuple[Mapping[Any, Cause], ...] = (SQLSTATES, SQLITE, SQLITE_LOG, KAFKA, READ_ONLY_DISK)
    yield from dict.fromkeys(
        [
            *(cause for table in tables for cause in table.values()),
            TLS,
            DATABASE_TLS,
            NOT_UTF8,
            SLOW,
            COLLATION,
            REPLICA,
            LOG_INCOMPATIBLE,
        ]
    )


def cure_of(code: str) -> str | None:
    """What mends the error with this code of ours, where the table knows it."""
    return next((cause.cure for cause in every() if cause.error.code == code), None)


def of_database(error: BaseException) -> LedgerError | None:
    """Our error for what a database's driver raised; None when it is none of these. `error` may be SQLAlchemy's, whose
    `orig` is the driver's, or the driver's own, as a failed connect raises it."""
    for told in _chain(error):
        state = _state(told)
        if state is not None:
            found = SQLSTATES.get(state) or SQLSTATES.get(state[:2])
            return _ledger_error(found, state, _words(told) if state in SAYS_WHICH else None) if found else None
        name = getattr(told, "sqlite_errorname", None)
        if isinstance(name, str):
            found = _sqlite(SQLITE, name)
            return _ledger_error(found, name) if found else None
        if isinstance(told, ssl.SSLError):
            return _ledger_error(DATABASE_TLS, said=_tls_reason(told))
        if isinstance(told, ConnectionError) and NO_TLS in str(told):
            return _ledger_error(DATABASE_TLS, said="the server speaks none")
        if (isinstance(told, ValueError) and NO_AUTHORITY in str(told)) or _lacks_authority(told):
            return _ledger_error(DATABASE_TLS, said="the file of the authority that signs the server's cannot be read")
        if type(told).__name__ == NONE_FITS:
            return _ledger_error(_READ_ONLY, "no host of the URL is what target_session_attrs asks for")
        if isinstance(told, socket.gaierror):
            return errors.LedgerUnavailable(reason="nobody knows the server's name")
        if isinstance(told, OSError) and told.errno == errno.ENOSPC:
            return _ledger_error(_FULL, "ENOSPC")
    return None


def _lacks_authority(told: BaseException) -> bool:
    """Whether the file that PGSSLROOTCERT names cannot be read: asyncpg lets the file system's error through."""
    path = os.environ.get("PGSSLROOTCERT")
    return isinstance(told, FileNotFoundError | PermissionError) and bool(path) and not os.access(path or "", os.R_OK)


def of_system(error: BaseException) -> errors.DescriptorsUsedUp | None:
    """Our error for what the system refused this process; None when it is none of these."""
    used_up = any(isinstance(told, OSError) and told.errno in (errno.EMFILE, errno.ENFILE) for told in _chain(error))
    return errors.DescriptorsUsedUp() if used_up else None


def refused(error: BaseException) -> LedgerError | None:
    """What a database refused for a cause that no table has, by its own code; None when no database said it."""
    for told in _chain(error):
        state = getattr(told, "sqlstate", None) or getattr(told, "sqlite_errorname", None)
        if isinstance(state, str):
            return LedgerError(state=state)
    return None


def of_log_file(name: str | None) -> type[BrokerError] | None:
    """Our error for SQLite's code, of the embedded log's file."""
    found = _sqlite(SQLITE_LOG, name) if name else None
    return found.error if found and issubclass(found.error, BrokerError) else None


def is_read_only(folder: Path) -> bool:
    """Whether the disk that this folder is on, or would be, is read-only; False where nobody can tell. The mount of one
    that a kernel made so after an error (ext4's `emergency_ro`) says that it is writable: a file without a name is
    refused there."""
    disk = _disk_of(folder)
    if disk is None or disk.f_flag & os.ST_RDONLY:
        return disk is not None
    try:
        os.close(os.open(_nearest(folder), os.O_WRONLY | os.O_CLOEXEC | os.O_TMPFILE, 0o600))
    except AttributeError:  # only Linux has them
        return False
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def is_for_want_of_room(name: str | None, path: Path) -> bool:
    """Whether SQLite's code is of a disk that is full: who opens a file there, and cannot lay his own beside it, is
    told of an I/O error."""
    if name is None or not name.startswith(INPUT_OUTPUT):
        return False
    disk = _disk_of(path.parent)
    return disk is not None and disk.f_bavail * disk.f_frsize < BESIDE_BYTES


def _nearest(folder: Path) -> Path:
    """The folder itself, or the first above that is there."""
    return next((one for one in (folder, *folder.parents) if one.is_dir()), folder)


def _disk_of(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(_nearest(folder))
    except OSError:
        return None


def of_disk(error: E, path: Path) -> E:
    """The error of a file that is not opened or not written, or the one that names its disk as the cause."""
    found = READ_ONLY_DISK.get(type(error))
    if found is None or not is_read_only(path.parent):
        return error
    return cast(E, found.error(**error.fields))


def of_kafka(error: BaseException) -> BrokerError | None:
    """Our error for what Kafka or the way to it said; None when it is none of these."""
    for told in _chain(error):
        if isinstance(told, ssl.SSLError):
            return errors.BrokerTlsFailed(said=_tls_reason(told))
        found = KAFKA.get(type(told).__name__)
        if found is not None and issubclass(found.error, BrokerError):
            return found.error(**_topics_of(told, found.error), reason=type(told).__name__)
    return None


def _state(error: BaseException) -> str | None:
    """Its SQLSTATE; of a connection that was lost, what the server said before it closed it, if it did."""
    state = getattr(error, "sqlstate", None)
    if not isinstance(state, str):
        return None
    beneath = error.__cause__ if state.startswith(LOST) else None
    return (_state(beneath) if beneath is not None else None) or state


def _sqlite(table: Mapping[str, Cause], name: str) -> Cause | None:
    """By its name, or by the primary code that an extended one (SQLITE_READONLY_DBMOVED) begins with."""
    return table.get(name) or next((cause for code, cause in table.items() if name.startswith(f"{code}_")), None)


def _topics_of(told: BaseException, error: type[ConsumerError]) -> dict[str, str]:
    """Which topics are refused, as aiokafka names them."""
    named = told.args[0] if told.args and error is errors.TopicForbidden else ()
    topics = [named] if isinstance(named, str) else sorted(map(str, named))
    return {"topic": ", ".join(topics)} if topics else {}


def _ledger_error(cause: Cause, state: str | None = None, said: str | None = None) -> LedgerError | None:
    fields = {name: word for name, word in (("state", state), ("said", said)) if word}
    return cause.error(**fields) if issubclass(cause.error, LedgerError) else None


def _words(told: BaseException) -> str:
    """What a server said, in one line, without what SQLAlchemy and its driver put around it."""
    words = str(getattr(told, "orig", told)).partition("\n")[0]
    return words.rpartition("'>: ")[2][:SAID_CHARS]


def _tls_reason(error: ssl.SSLError) -> str:
    verify = getattr(error, "verify_message", None)
    return str(verify or error.reason or type(error).__name__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what the driver said beneath it, and what caused it; bounded."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < 10:
        told = waiting.pop(0)
        if told is None or told in seen:
            continue
        seen.append(told)
        yield told
        waiting += [getattr(told, "orig", None), told.__cause__, told.__context__]
