"""IdempotencyKeys: the key of a write is stored from before its first send to its outcome (cases C3, C4, U17)."""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

import orjson

from consumer.payments.shared_budget import BudgetStore

MEMORY_MAX_KEYS = 10_000
KEY_MAX_AGE_S = 86_400.0


class IdempotencyKeys(Protocol):
    """Keys of writes whose outcome is not known yet. In memory for one process, in the ledger to survive a crash."""

    async def begin(self, application: str, operation: str, digest: str) -> str:
        """The key for this operation with this body: the one of an unfinished try, else a new random one, stored.

        `operation` names what is done to what (`checkout_sessions.create/ORDER`), `digest` the exact body.
        """
        ...

    async def settle(self, application: str, operation: str, key: str) -> None:
        """The outcome of the write with this key is known: the next such operation gets a new key."""
        ...


class MemoryIdempotencyKeys:
    """The keys of a single process; forgets the oldest beyond its bound."""

    def __init__(self, max_keys: int = MEMORY_MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._keys: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    async def begin(self, application: str, operation: str, digest: str) -> str:
        """See IdempotencyKeys."""
        found = self._keys.get((application, operation))
        if found is not None and found[0] == digest:
            return found[1]
        key = new_key()
        self._keys[application, operation] = (digest, key)
        self._keys.move_to_end((application, operation))
        while len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
        return key

    async def settle(self, application: str, operation: str, key: str) -> None:
        """See IdempotencyKeys."""
        found = self._keys.get((application, operation))
        if found is not None and found[1] == key:
            del self._keys[application, operation]


class StoredIdempotencyKeys:
    """Keys in the store that also holds the budget, so that they survive a crash when that store does.

    A key whose outcome stayed unknown is used again for a day; then the operation is taken for a new one.
    """

    def __init__(self, store: BudgetStore) -> None:
        self._store = store

    async def begin(self, application: str, operation: str, digest: str) -> str:
        """See IdempotencyKeys."""
        name = _name(application, operation)
        fresh = new_key()

        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], str]:
            kept_digest, kept_key, at = _kept(texts.get(name))
            if kept_digest == digest and abs(now - at) < KEY_MAX_AGE_S:
                return {}, kept_key
            return {name: orjson.dumps([digest, fresh, now]).decode()}, fresh

        return await self._store.update([name], step)

    async def settle(self, application: str, operation: str, key: str) -> None:
        """See IdempotencyKeys."""
        name = _name(application, operation)

        def step(texts: Mapping[str, str], _now: float) -> tuple[Mapping[str, str], None]:
            _, kept_key, _ = _kept(texts.get(name))
            return ({name: ""} if kept_key == key else {}), None

        await self._store.update([name], step)


def _name(application: str, operation: str) -> str:
    # Hashed, as an operation holds the merchant's order id, of any length and perhaps personal.
    return "key/" + hashlib.sha256(f"{application}\0{operation}".encode()).hexdigest()


def _kept(text: str | None) -> tuple[str, str, float]:
    if not text:
        return "", "", 0.0
    digest, key, at = orjson.loads(text)
    return str(digest), str(key), float(at)


def new_key() -> str:
    """A random idempotency key."""
    return str(uuid.uuid4())


def body_digest(body: bytes) -> str:
    """What identifies a body: SHA-256 in hex, so that no body is stored."""
    return hashlib.sha256(body).hexdigest()
