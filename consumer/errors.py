"""The whole error tree. Every error carries a `code`, says whether trying again can help, and keeps ids as fields.

The docstring of a class is its default message, one line, safe to print: no secret, no personal data.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeVar

from consumer.reason import Reason

E = TypeVar("E", bound=BaseException)


class ConsumerError(Exception):
    """Something in the consumer failed."""

    code: ClassVar[str] = "consumer_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, **fields: Any) -> None:
        self.message = message or (type(self).__doc__ or "error").strip().splitlines()[0]
        self.fields = fields
        super().__init__(self.message)

    def line(self) -> str:
        """The one line an operator reads: `error[code]: message (field=value, ...)`."""
        detail = ", ".join(f"{name}={value}" for name, value in self.fields.items() if value is not None)
        return f"error[{self.code}]: {self.message}" + (f" ({detail})" if detail else "")

    def sentence(self) -> str:
        """The message, and which topic, group or file it is about, what a schema lacks, or how a server said it."""
        names = ("topic", "group", "path", "lacking", "said")
        about = next((str(self.fields[name]) for name in names if self.fields.get(name)), None)
        return f"{self.message} ({about})" if about else self.message


def again(error: E) -> E:
    """The same once more, to be raised. One that is kept and raised itself collects a traceback at each raise: frames,
    and all that they hold."""
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    return fresh


def code_of(error: BaseException) -> str:
    """Its code; the kind's name for one that nobody foresaw."""
    return error.code if isinstance(error, ConsumerError) else type(error).__name__


# --- configuration -------------------------------------------------------------------------------------------


class SettingsError(ConsumerError):
    """The settings are not usable."""

    code = "settings_invalid"

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{len(problems)} problem(s) in the settings: " + "; ".join(problems))


class SecretFileBroken(ConsumerError):
    """The secret file cannot be used any more; the secrets it held last stay in use."""

    code = "secret_file_broken"


class PortTaken(ConsumerError):
    """The address to listen on cannot be had: see CONSUMER_PORT and CONSUMER_INTERNAL_PORT."""

    code = "port_taken"


class ProcessEnded(ConsumerError):
    """One of the processes of `serve --processes` ended by itself, or hangs; what it said stands above. The others were
    ended."""

    code = "process_ended"


class DescriptorsUsedUp(ConsumerError):
    """This process can open no more files and connections: its limit (`ulimit -n`, LimitNOFILE) is used up."""

    code = "descriptors_used_up"
    retryable = True


class UsageError(ConsumerError):
    """The command was called with words that do not fit."""

    code = "usage"


class TermsDiffer(ConsumerError):
    """The session is registered with other terms, which may be added to, not changed: cancel it, and create another."""

    code = "terms_differ"

    def __init__(self, differing: tuple[str, ...]) -> None:
        self.differing = differing
        super().__init__(differing="+".join(differing))


class OutputUnwritable(ConsumerError):
    """The answer cannot be written to where stdout goes; what the command did is done."""

    code = "output_unwritable"


class Terminated(ConsumerError):
    """The command was ended by a signal; what it had done until then stays done."""

    code = "terminated"


# --- what arrives --------------------------------------------------------------------------------------------


class NotUnderstood(ConsumerError):
    """The body is not an event: not a JSON object, or without an event id."""

    code = "not_understood"

    def __init__(self, message: str | None = None, *, reason: Reason = Reason.NOT_UNDERSTOOD, **fields: Any) -> None:
        self.reason = reason
        super().__init__(message or reason.detail, **fields)


class BadSignature(ConsumerError):
    """The signature does not match any configured secret."""

    code = "bad_signature"


# --- the ledger ----------------------------------------------------------------------------------------------


class LedgerError(ConsumerError):
    """The ledger refused."""

    code = "ledger_error"


class LedgerUnavailable(LedgerError):
    """The database does not answer."""

    code = "ledger_unavailable"
    retryable = True


class LedgerSlow(LedgerUnavailable):
    """The database answers, and too slowly."""

    code = "ledger_slow"


class CollationChanged(LedgerError):
    """The database sorts text otherwise than when its indexes were made: what is unique may come to be there twice."""

    code = "collation_changed"


class LedgerAwaitsReplica(LedgerUnavailable):
    """The database's commits wait for a synchronous replica that does not answer."""

    code = "ledger_awaits_replica"


class StatementCancelled(LedgerUnavailable):
    """The database cancels statements that take longer than it allows."""

    code = "statement_cancelled"


class DatabaseUnknown(LedgerUnavailable):
    """The server has no database of this name."""

    code = "database_unknown"


class DatabaseLoginRefused(LedgerUnavailable):
    """The database refuses this user or password."""

    code = "database_login_refused"


class DatabaseForbidden(LedgerUnavailable):
    """The database's user may not do this."""

    code = "database_forbidden"


class DatabaseTooManyClients(LedgerUnavailable):
    """The database takes no more connections."""

    code = "database_too_many_clients"


class DatabaseNotUp(LedgerUnavailable):
    """The database server is starting up or shutting down."""

    code = "database_not_up"


class DatabaseTlsFailed(LedgerUnavailable):
    """The secured connection to the database could not be made."""

    code = "database_tls_failed"


class PoolerRefuses(LedgerUnavailable):
    """The pooler between us and the database refuses."""

    code = "pooler_refuses"


class LedgerDiskFull(LedgerUnavailable):
    """The database's disk is full."""

    code = "ledger_disk_full"


class LedgerReadOnly(LedgerUnavailable):
    """The database takes no writes: it is read-only."""

    code = "ledger_read_only"


class LedgerDiskReadOnly(LedgerUnavailable):
    """The disk of the database's file is mounted read-only."""

    code = "ledger_disk_read_only"


class LedgerDiskFailing(LedgerUnavailable):
    """The database's disk answers with an I/O error."""

    code = "ledger_disk_failing"


class LedgerLocked(LedgerUnavailable):
    """Somebody else holds the database's lock."""

    code = "ledger_locked"


class LedgerBehind(ConsumerError):
    """The ledger stands before these records of the log: what lies between is not in it. `places`: topic and number of
    each partition in which it does."""

    code = "ledger_behind"

    def __init__(self, places: frozenset[tuple[str, int]]) -> None:
        super().__init__()
        self.places = places


class LedgerNotOpened(LedgerUnavailable):
    """The database's file cannot be opened."""

    code = "ledger_not_opened"


class LedgerCorrupt(LedgerError):
    """The database's file is damaged, or is not a database."""

    code = "ledger_corrupt"


class DatabaseMissing(LedgerError):
    """There is no database yet: run `consumer db upgrade`."""

    code = "database_missing"


class SchemaNowhere(LedgerError):
    """There is no schema on the user's search_path: tables can neither be made nor found."""

    code = "schema_nowhere"


class DatabaseNotUtf8(LedgerError):
    """The database keeps text in another encoding than UTF8: some of what customers write cannot be stored."""

    code = "database_not_utf8"


class DatabaseShared(LedgerError):
    """Another application's tables are in this schema: the ledger needs a schema or a database of its own."""

    code = "database_shared"


class SchemaOutdated(LedgerError):
    """The database schema is not at this version: run `consumer db upgrade`."""

    code = "schema_outdated"


class NotDerived(LedgerError):
    """Events came in from archives of which the plugins' tables do not tell yet: `consumer rebuild all`, then start."""

    code = "not_derived"


class SchemaIncompatible(LedgerError):
    """The database lacks what this version needs, or asks for what it does not give; run the version that made it."""

    code = "schema_incompatible"


class MigrationFailed(LedgerError):
    """A migration cannot be read, or fails; nothing was changed, and `consumer handlers check` says more."""

    code = "migration_failed"


class LeaseLost(LedgerError):
    """Another process holds the lease now."""

    code = "lease_lost"
    retryable = True


class NotFound(LedgerError):
    """The ledger does not know it."""

    code = "not_found"


# --- replay --------------------------------------------------------------------------------------------------


class ReplayError(ConsumerError):
    """The replay cannot be done."""

    code = "replay_error"


class PlanRefused(ReplayError):
    """What was never proved is not replayed."""

    code = "replay_refused"


class PlanInProgress(ReplayError):
    """Another plan is being applied."""

    code = "replay_in_progress"


class PlanOver(ReplayError):
    """The plan was applied, or cancelled: make a new one."""

    code = "plan_over"


class PlanTooOld(ReplayError):
    """The plan is too old: make a new one."""

    code = "plan_too_old"


class PlanMoved(ReplayError):
    """The world has moved since the plan: `differences` says where."""

    code = "plan_moved"

    def __init__(self, differences: list[dict[str, str]], **fields: Any) -> None:
        self.differences = differences
        super().__init__(f"{len(differences)} item(s) would come out otherwise than planned: make a new plan", **fields)


class RebuildDiffers(ReplayError):
    """Derived again, the runs would have told somebody something else than was told: nothing was changed."""

    code = "rebuild_differs"


class WorkGoesOn(ReplayError):
    """A process lives whose writes would get in between: stop it first."""

    code = "work_goes_on"


class ReplayStalled(ReplayError):
    """No worker takes what is replayed: does `work` run? The plan is kept; `consumer replay apply` goes on with it."""

    code = "replay_stalled"


# --- archives ------------------------------------------------------------------------------------------------


class ArchiveError(ConsumerError):
    """The archive cannot be used."""

    code = "archive_error"


class ArchiveUnwritable(ArchiveError):
    """The archive cannot be written: nothing was taken out of the ledger."""

    code = "archive_unwritable"
    retryable = True


class ArchiveWaits(ArchiveError):
    """A replay plan is being applied, which needs old bodies: prune when it is over."""

    code = "archive_waits"
    retryable = True


class ArchiveInvalid(ArchiveError):
    """The file is not an archive as it was written."""

    code = "archive_invalid"


class ArchiveForeign(ArchiveError):
    """The archive is not of this ledger."""

    code = "archive_foreign"


class BodiesArchived(ArchiveError):
    """Bodies that are needed lie in an archive: `consumer events import FILE` brings them back."""

    code = "bodies_archived"


# --- the process ---------------------------------------------------------------------------------------------


class RoleSlow(ConsumerError):
    """The process gets too little of a processor, or something blocks its loop again and again."""

    code = "role_slow"


# --- the broker ----------------------------------------------------------------------------------------------


class BrokerError(ConsumerError):
    """The broker refused."""

    code = "broker_error"
    durable: frozenset[int] = frozenset()
    """Of what `publish_many` was given, by its place: what is in the log all the same. Any other may be, too."""


class BrokerUnavailable(BrokerError):
    """The broker does not answer in time."""

    code = "broker_unavailable"
    retryable = True


class RecordRefused(BrokerUnavailable):
    """The topic takes no record of this size now, though it did when its limit was read (`max.message.bytes`): it is
    taken when the limit is raised again. Its code is that of a broker that is away; nothing else waits for it."""


class PartitionAway(BrokerUnavailable):
    """The partition of these records takes none, while others of its topic are well. Its code is that of a broker that
    is away; nothing else waits for it."""


class BrokerLoginRefused(BrokerUnavailable):
    """The broker refuses this user, password or mechanism."""

    code = "broker_login_refused"


class BrokerIncompatible(BrokerUnavailable):
    """The broker speaks no version of its protocol that we speak."""

    code = "broker_incompatible"


class BrokerTlsFailed(BrokerUnavailable):
    """The secured connection to the broker could not be made."""

    code = "broker_tls_failed"


class TopicForbidden(BrokerUnavailable):
    """The broker does not allow this user to use the topic."""

    code = "topic_forbidden"


class GroupForbidden(BrokerUnavailable):
    """The broker does not allow this user to use the group."""

    code = "group_forbidden"


class ClusterForbidden(BrokerUnavailable):
    """The broker does not allow this user to write or describe on the cluster."""

    code = "cluster_forbidden"


class LogNotReplicated(BrokerUnavailable):
    """Too few brokers are there for the topic's replicas: Kafka takes no records, or makes no topic."""

    code = "log_not_replicated"


class LogCompressed(BrokerUnavailable):
    """The topic holds records that are compressed so that they cannot be read here."""

    code = "log_compressed"


class LogDiskFull(BrokerUnavailable):
    """The log's disk is full."""

    code = "log_disk_full"


class LogReadOnly(BrokerUnavailable):
    """The log's file takes no writes: it is read-only."""

    code = "log_read_only"


class LogDiskReadOnly(BrokerUnavailable):
    """The disk of the log's file is mounted read-only."""

    code = "log_disk_read_only"


class LogDiskFailing(BrokerUnavailable):
    """The disk of the log's file answers with an I/O error."""

    code = "log_disk_failing"


class LogLocked(BrokerUnavailable):
    """Somebody else holds the lock of the log's file."""

    code = "log_locked"


class LogNotOpened(BrokerUnavailable):
    """The log's file cannot be opened."""

    code = "log_not_opened"


class LogReplaced(BrokerUnavailable):
    """The log's file was removed or replaced while it was open: restart this role."""

    code = "log_replaced"


class LogCorrupt(BrokerError):
    """The embedded log's file is damaged or is not a log."""

    code = "log_corrupt"


class LogIncompatible(BrokerError):
    """The embedded log's file is of a newer version, or somebody else's database."""

    code = "log_incompatible"


class BrokerUrlInvalid(BrokerError):
    """The broker's address is neither `embedded:PATH` nor `kafka://host:port,host:port`."""

    code = "broker_url_invalid"


class TopicUnknown(BrokerError):
    """There is no such topic."""

    code = "topic_unknown"


class RecordTooLarge(BrokerError):
    """The record is larger than the topic takes."""

    code = "record_too_large"


TOO_LARGE: Final = (RecordTooLarge, RecordRefused)
"""A record that its topic does not take for its size, for ever or for now: others can go without it."""
ALONE: Final = (*TOO_LARGE, PartitionAway)
"""A record that its topic does not take, while it takes others."""


class TopicMisconfigured(BrokerError):
    """A topic exists with a configuration that could lose records."""

    code = "topic_misconfigured"


# --- sync ----------------------------------------------------------------------------------------------------


class SyncError(ConsumerError):
    """Reading the service could not go on."""

    code = "sync_error"


class WrongApplication(SyncError):
    """The credentials belong to another application than the one whose data the ledger holds."""

    code = "wrong_application"


class AnotherLeads(SyncError):
    """Another process leads this role now."""

    code = "another_leads"
    retryable = True


# --- handlers ------------------------------------------------------------------------------------------------


class HandlerError(ConsumerError):
    """A handler cannot be used."""

    code = "handler_error"


class HandlerInvalid(HandlerError):
    """The handler's declaration is not usable."""

    code = "handler_invalid"


class PayloadUnexpected(HandlerInvalid):
    """The event's data does not have the shape that its payload class says."""

    code = "payload_unexpected"


class HandlerTimeout(HandlerError):
    """The handler did not finish in its time."""

    code = "handler_timeout"
    retryable = True


class HandlerEndsProcess(HandlerError):
    """The process ended while the handler ran."""

    code = "handler_ends_process"
    retryable = True


class HandlerMisuse(HandlerError):
    """The handler used a part of its context that its kind does not have."""

    code = "handler_misuse"


class HandlerCrashed(HandlerError):
    """The handler raised something that is not an Exception (sys.exit and the like)."""

    code = "handler_crashed"
    retryable = True
