"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    bindparam,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import SQLModel

from consumer.document import storable

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Values = Callable[[Mapping[str, ColumnElement[Any]]], Mapping[str, ColumnElement[Any]]]
"""By what a row brings: what columns are set to."""

MARKS = (range(0x1F, 0, -1), range(0x7F, 0xD800), range(0xE000, 0x110000))
"""Characters that may be marks, those first that hardly any text has; not NUL, which PostgreSQL cannot store."""

_BEFORE, _NULL = "_before", "_null"
"""Parameters: the marks before a text, and in place of none."""
_ROWS = "_rows"
NUL_IN_JSON = b"\\u0000"

PACKED = b"\x00zlib\x00"
PACKED_FROM_BYTES = 512


class TableRow(SQLModel):
    """The base of tables. Rows are not validated: no validators, a third of what tables cost a start, are built."""

    model_config = {"defer_build": True}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, in UTC on both sides; a naive one is refused (SQLite would keep it without its zone)."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """With a zone on PostgreSQL; SQLite has none."""
        return dialect.type_descriptor(DateTime(timezone=dialect.name == "postgresql"))

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], datetime | str | None]:
        """What is stored, in one call where SQLAlchemy makes three: an order binds some thirty. It raises ValueError
        for a time without a zone. What SQLite gets is what SQLAlchemy's own DateTime writes there."""
        return _utc if dialect.name == "postgresql" else _utc_text

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The same, for what SQLAlchemy writes into a statement as a literal."""
        utc = _utc(value)
        return utc if utc is None or dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What was stored, aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("a time without a zone cannot be stored")
    return value if value.tzinfo is UTC else value.astimezone(UTC)


@lru_cache(maxsize=256)
def _utc_text(value: datetime | None) -> str | None:
    """Most times of a batch are the same one."""
    utc = _utc(value)
    return None if utc is None else utc.replace(tzinfo=None).isoformat(" ", "microseconds")


class Words(TypeDecorator[str]):
    """Text that somebody else wrote, of at most so many characters: any text can be stored, on either database alike.
    What is longer is cut, and what PostgreSQL or a driver refuses becomes U+FFFD (`document.storable`)."""

    impl = String
    cache_ok = True

    def __init__(self, chars: int) -> None:
        super().__init__(chars)
        self.chars = chars  # by this name SQLAlchemy's cache tells two of them apart

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:  # noqa: ARG002 - SQLAlchemy calls it so
        """What is stored, and what is looked for; in one call, as of `UtcDateTime`."""
        chars = self.chars

        def stored(value: str | None) -> str | None:
            return None if value is None else storable(value, chars)

        return stored

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """The same, for what SQLAlchemy writes into a statement as a literal."""
        return None if value is None else storable(value, self.chars)


class PackedBytes(TypeDecorator[bytes]):
    """Bytes of a stranger's, packed where that makes them fewer. They are read as they are stored, and `unpacked` gives
    them back: one body of those that were read, when it is wanted, for each may be a megabyte of zeros."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002 - SQLAlchemy calls it so
        """What is stored."""
        if value is None or (len(value) <= PACKED_FROM_BYTES and not value.startswith(PACKED)):
            return value
        packed = PACKED + zlib.compress(value, 6)
        return packed if len(packed) < len(value) or value.startswith(PACKED) else value


def unpacked(stored: bytes) -> bytes:
    """What was given, from what `PackedBytes` stored."""
    return zlib.decompress(stored[len(PACKED) :]) if stored.startswith(PACKED) else stored


def unpacked_within(stored: bytes, most: int) -> bytes | None:
    """The same; None of what has more bytes than `most`, of which no more than those are unpacked."""
    if stored.startswith(PACKED):
        stored = zlib.decompressobj().decompress(stored[len(PACKED) :], most + 1)
    return stored if len(stored) <= most else None


def serial() -> TypeEngine[int]:
    """A 64-bit number that counts up by itself as a primary key (SQLite counts only its INTEGER)."""
    return BigInteger().with_variant(Integer, "sqlite")


def insert_into(table: Table, dialect: str) -> PostgresInsert | SqliteInsert:
    """An INSERT that knows ON CONFLICT, in the dialect's own spelling (both spell it alike). Which of the two a process
    has in memory, its database decides."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


class _Many(TypeDecorator[Collection[Any]]):
    """Several values in one parameter: an array on PostgreSQL, JSON on SQLite."""

    impl = Text
    cache_ok = True

    def __init__(self, item: TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """PostgreSQL has arrays."""
        return dialect.type_descriptor(ARRAY(self.item) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Collection[Any] | None, dialect: Dialect) -> Any:
        """What is sent."""
        given = list(value or ())
        if dialect.name == "postgresql":
            return given  # an array sees to its items itself
        process = self.item.bind_processor(dialect)
        return orjson.dumps(given if process is None else [process(one) for one in given]).decode()


class _Rows(TypeDecorator[Sequence[Sequence[Any]]]):
    """Rows, given by columns of these types, in one parameter of SQLite: a JSON array for each."""

    impl = Text
    cache_ok = True

    def __init__(self, kinds: tuple[TypeEngine[Any], ...]) -> None:
        super().__init__()
        self.kinds = kinds

    def process_bind_param(self, value: Sequence[Sequence[Any]] | None, dialect: Dialect) -> str:
        """What is sent. Raises ValueError for a text with a NUL, at which SQLite would end it."""
        columns = [
            column if process is None else [process(one) for one in column]
            for process, column in zip(_processes(self.kinds, dialect), value or (), strict=True)
        ]
        document = orjson.dumps(list(zip(*columns, strict=True)))
        if NUL_IN_JSON in document and any("\0" in one for column in columns for one in column if type(one) is str):
            raise ValueError("a text with a NUL cannot be stored")
        return document.decode()


@lru_cache(maxsize=64)
def _processes(kinds: tuple[TypeEngine[Any], ...], dialect: Dialect) -> list[Callable[[Any], Any] | None]:
    return [kind.dialect_impl(dialect).bind_processor(dialect) for kind in kinds]


class _Among(FunctionElement[bool]):
    """`column` is one of the values in one parameter."""

    type = Boolean()
    inherit_cache = True

    def self_group(self, against: object = None) -> _Among:  # noqa: ARG002 - SQLAlchemy calls it so
        """As it is: SQLAlchemy would write `= 1` behind it for SQLite, which then uses no index."""
        return self


class _Each(FunctionElement[Any]):
    """The values in one parameter as rows."""

    inherit_cache = True


class _Split(FunctionElement[Any]):
    """The texts that `_joined` joined. A mark stands before each, and what is before the first is cut off: so one empty
    text is not the same as none."""

    inherit_cache = True


class _Octets(FunctionElement[int]):
    """How many bytes a text takes."""

    type = Integer()
    inherit_cache = True


@compiles(_Among)
def _among_on_sqlite(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, values = element.clauses
    return (
        f"{compiler.process(column, **options)} IN (SELECT value FROM json_each({compiler.process(values, **options)}))"
    )


@compiles(_Among, "postgresql")
def _among_on_postgresql(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, values = element.clauses
    return f"{compiler.process(column, **options)} = ANY ({compiler.process(values, **options)})"


@compiles(_Each)
def _each_on_sqlite(element: _Each, compiler: SQLCompiler, **options: Any) -> str:
    (values,) = element.clauses
    return f"json_each({compiler.process(values, **options)})"


@compiles(_Each, "postgresql")
def _each_on_postgresql(element: _Each, compiler: SQLCompiler, **options: Any) -> str:
    (values,) = element.clauses
    return f"(SELECT unnest({compiler.process(values, **options)}) AS value)"


@compiles(_Split, "postgresql")
def _split_on_postgresql(element: _Split, compiler: SQLCompiler, **options: Any) -> str:
    sent = [compiler.process(each, **options) for each in element.clauses]
    return f"(string_to_array({', '.join(sent)}))[2:]"


@compiles(_Octets)
def _octets_on_sqlite(element: _Octets, compiler: SQLCompiler, **options: Any) -> str:
    (column,) = element.clauses
    return f"length(CAST({compiler.process(column, **options)} AS BLOB))"


@compiles(_Octets, "postgresql")
def _octets_on_postgresql(element: _Octets, compiler: SQLCompiler, **options: Any) -> str:
    (column,) = element.clauses
    return f"octet_length({compiler.process(column, **options)})"


def octets(column: ColumnElement[str]) -> ColumnElement[int]:
    """How many bytes the text takes: its length counts characters."""
    return _Octets(column)


def among(column: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """`column IN (values)` as one parameter, so that the statement is the same however many there are: it is prepared
    once, and an index is searched value by value. Together with equality on the rest of a key it says what
    `(a, b) IN ((...), ...)` says, for which SQLite reads whole tables."""
    return _Among(column, bindparam(None, values, type_=_Many(column.type)))


def among_given(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """As `among`, for a statement that is built once and sent with the values under this name."""
    return _Among(column, bindparam(name, type_=_Many(column.type)))


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The same value, for which no planner takes an index: where it would take the wrong one. An application's name
    leads many, and fits nearly every row; and rows in the order of a key are not sought by walking along that key."""
    return column.concat("") if isinstance(column.type, String) else func.coalesce(column, column)


class Given:
    """Many rows of a table in one statement, sent as what `rows` makes of them. The text is the same however many rows
    there are, so it is prepared once, and nothing is built for each: on PostgreSQL a parameter for each column holds
    its values, on SQLite one JSON document holds the rows.

    Texts are sent joined and split by PostgreSQL: asyncpg looks at each item of an array in Python, which is half of
    what sending rows costs. Bytes are sent joined and cut by SQLite: JSON holds none.

    `names`: columns of the table; `more`: what else each row brings, and its type. `alike`: those of them that are the
    same in all rows, and sent once."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        more: Mapping[str, TypeEngine[Any]] | None = None,
        *,
        alike: Collection[str] = (),
    ) -> None:
        self._table = table
        self._types = {name: table.c[name].type for name in names} | dict(more or {})
        self._alike = alike
        self._each = [name for name in self._types if name not in alike]
        self._texts = [name for name in self._each if isinstance(self._types[name], (String, Words))]
        self._bytes = [name for name in self._each if isinstance(self._types[name], LargeBinary)]

    def insert(self, dialect: str, values: Values | None = None) -> PostgresInsert | SqliteInsert:
        """An INSERT of the rows, in their order. `values`: what more is set, given what a row brings."""
        columns = [name for name in self._types if name in self._table.c]
        brought, number = self._unnested() if dialect == "postgresql" else self._unpacked()
        set_too = values(brought) if values else {}
        said = select(*[brought[name] for name in columns], *set_too.values()).order_by(number)
        return insert_into(self._table, dialect).from_select([*columns, *set_too], said)

    def rows(self, dialect: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What `insert` is sent with."""
        each: dict[str, Any] = dict(zip(self._each, zip(*map(itemgetter(*self._each), rows), strict=True), strict=True))
        alike = {name: rows[0][name] for name in self._alike}
        if dialect != "postgresql":
            return alike | _cut(each, self._bytes)
        texts = {name: _storable(self._types[name], each[name]) for name in self._texts}
        return each | _joined(texts) | alike

    def _unnested(self) -> tuple[dict[str, ColumnElement[Any]], ColumnElement[int]]:
        """What a row brings, and its number, on PostgreSQL."""
        # As text: a cast to VARCHAR(n) would cut what is too long, and nobody would hear of it.
        sent = {name: Text() if type(kind) is String else kind for name, kind in self._types.items()}
        rows = func.unnest(*[_split(name) if name in self._texts else _array(name, sent[name]) for name in self._each])
        typed = [column(name, sent[name]) for name in self._each]
        each_row = rows.table_valued(*typed, with_ordinality="nth").render_derived()
        return dict(each_row.c) | {name: bindparam(name, type_=sent[name]) for name in self._alike}, each_row.c.nth

    def _unpacked(self) -> tuple[dict[str, ColumnElement[Any]], ColumnElement[int]]:
        """The same on SQLite."""
        kinds = {name: Integer() if name in self._bytes else self._types[name] for name in self._each}
        kinds |= {_length(name): Integer() for name in self._bytes}
        rows = func.json_each(bindparam(_ROWS, type_=_Rows(tuple(kinds.values())))).table_valued("key", "value")
        brought: dict[str, ColumnElement[Any]] = {
            name: func.json_extract(rows.c.value, literal_column(f"'$[{place}]'"), type_=kind)
            for place, (name, kind) in enumerate(kinds.items())
        }
        for name in self._bytes:
            joined = bindparam(name, type_=LargeBinary())
            brought[name] = func.substr(joined, brought[name], brought[_length(name)], type_=LargeBinary())
        return brought | {name: bindparam(name, type_=self._types[name]) for name in self._alike}, rows.c.key


def _length(name: str) -> str:
    return f"{name}_length"


def _cut(each: Mapping[str, Sequence[Any]], joined: Sequence[str]) -> dict[str, Any]:
    """The rows by columns, and of columns of bytes (none is NULL) where in the joined bytes a row's begin, and how many
    they are."""
    rows, lengths = dict(each), {}
    for name in joined:
        lengths[_length(name)] = [len(one) for one in each[name]]
        rows[name] = list(accumulate(lengths[_length(name)][:-1], initial=1))
    return {_ROWS: list((rows | lengths).values())} | {name: b"".join(each[name]) for name in joined}


def _array(name: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    return bindparam(name, type_=_Many(kind))


def _split(name: str) -> ColumnElement[Any]:
    return _Split(*[bindparam(each, type_=Text()) for each in (name, _BEFORE, _NULL)])


def _joined(texts: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
    """What `_split` takes apart, and its marks: characters that none of the texts has."""
    whole = "".join([text for column in texts.values() for text in column if text is not None])
    before, null = islice((mark for mark in map(chr, chain(*MARKS)) if mark not in whole), 2)
    said = {
        name: "".join([before + (null if text is None else text) for text in column]) for name, column in texts.items()
    }
    return said | {_BEFORE: before, _NULL: null}


def _storable(kind: TypeEngine[Any], texts: Sequence[str | None]) -> Sequence[str | None]:
    if not isinstance(kind, Words):
        return texts
    return [None if text is None else storable(text, kind.chars) for text in texts]


def each(values: Collection[str]) -> TableValuedAlias:
    """The texts as rows with the column `value`."""
    return _Each(bindparam(None, values, type_=_Many(String()))).table_valued("value")


def each_given(name: str) -> TableValuedAlias:
    """As `each`, for a statement that is built once and sent with the values under this name."""
    return _Each(bindparam(name, type_=_Many(String()))).table_valued("value")
