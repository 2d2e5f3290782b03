"""Sync parts: how settings become the values that the role `sync` is built from. Pure."""

from __future__ import annotations

from datetime import timedelta

from consumer.settings import Settings
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.confirm.policy import ConfirmPolicy
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.role import SyncPolicy


def sync_policy(settings: Settings) -> SyncPolicy:
    """How the stages that read the service behave."""
    return SyncPolicy(
        confirm=ConfirmPolicy(patience_s=settings.confirm_patience_s),
        backfill=BackfillPolicy(interval_s=settings.sync_interval_s),
        reconcile=ReconcilePolicy(every=timedelta(seconds=settings.reconcile_interval_s)),
        unproved_max_bytes=settings.unproved_max_bytes,
    )
