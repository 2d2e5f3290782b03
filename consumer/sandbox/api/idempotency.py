"""Idempotency: what a repeated Idempotency-Key does. The spec demands the header and shows nothing else (case U17)."""

from __future__ import annotations

import json
import re
from datetime import timedelta

from consumer.sandbox.api.endpoints import Answer, answer_text
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.errors import Refusal

MAX_KEPT = 20_000
VISIBLE = re.compile(r"[!-~]+")


class Idempotency:
    """Keys belong to an application, a method and a path."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def key(self, header: str | None) -> str:
        """The key of a POST. Raises validation_failed (or its own code, an assumption) without one (case X31)."""
        if header is None or not header.strip():
            code = self._engine.assumptions.text("missing_idempotency_key")
            raise Refusal(code, "A POST needs the header Idempotency-Key.", field="Idempotency-Key")
        if len(header) > self._engine.assumptions.number("idempotency_key_chars"):
            raise Refusal("validation_failed", "The Idempotency-Key is too long.", field="Idempotency-Key")
        key = header.strip()
        if self._engine.assumptions.text("idempotency_key_text") == "visible_ascii" and not VISIBLE.fullmatch(key):
            raise Refusal("validation_failed", "The Idempotency-Key must be visible ASCII.", field="Idempotency-Key")
        return key

    def known(self, app_id: str, key: str, place: str, digest: str) -> Answer | None:
        """The stored answer for this key; None when the request is to be carried out."""
        world, assumptions = self._engine.world, self._engine.assumptions
        stored = world.answers.get(f"{app_id}|{place}|{key}")
        retention = timedelta(seconds=assumptions.number("idempotency_retention_s"))
        if stored is None or stored.created_at + retention <= world.now():
            return None
        if stored.request_digest != digest:
            if assumptions.text("idempotency_conflict") == "refuse":
                raise Refusal("idempotency_key_reused", field="Idempotency-Key")
            return None
        if assumptions.text("idempotency_reuse") == "rerun":
            return None
        return Answer(stored.status, json.loads(stored.body))

    def keep(self, app_id: str, key: str, place: str, digest: str, answer: Answer, *, without_url: bool) -> None:
        """Remember a success. A create is kept without its link: only its first answer carries one (spec, `url`)."""
        world = self._engine.world
        body = answer.body | {"url": None} if without_url else answer.body
        record_id = f"{app_id}|{place}|{key}"
        world.answers.drop(record_id)
        world.put(
            world.answers,
            r.StoredAnswer(
                id=record_id,
                seq=world.next_seq(),
                request_digest=digest,
                status=answer.status,
                body=answer_text(Answer(answer.status, body)),
                created_at=world.now(),
            ),
        )
        oldest = world.answers.seqs("")
        if len(oldest) > MAX_KEPT:
            world.answers.drop(world.answers.at_seq(oldest[0]).id)
