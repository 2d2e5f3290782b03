"""A default that a class has and a setting too is one number: who builds the class alone gets what an operator gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from consumer.app import log_parts, parts, receive_parts
from consumer.app.sync_parts import sync_policy
from consumer.broker import KafkaSecurity
from consumer.broker.base import Broker
from consumer.broker.embedded.broker import EmbeddedBroker
from consumer.broker.kafka.broker import KafkaBroker
from consumer.payments import PaymentsClient
from consumer.payments.budget import Limits as BudgetLimits
from consumer.payments.transport import Transport
from consumer.receive.authenticity import HmacLayout, StandardWebhooks
from consumer.receive.web import Limits as ReceiveLimits
from consumer.settings import Role, Settings, load_settings
from consumer.sync.confirm.hints import HintConsumer
from consumer.sync.role import SyncPolicy
from consumer.telemetry.traces import start_tracing
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.execution.watchdog import CUTOFF_S
from consumer.work.worker import WorkerConfig
from handlers.access.policy import Policy
from tests.settings.reading import CREDENTIALS


@pytest.fixture
def settings() -> Settings:
    return load_settings(CREDENTIALS, Role.WORK)


def default_of(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_stages_that_are_built_alone_behave_as_those_of_a_deployment(settings: Settings) -> None:
    assert sync_policy(settings) == SyncPolicy()
    assert default_of(HintConsumer, "max_bytes") == settings.unproved_max_bytes


def test_receiving_has_one_set_of_bounds(settings: Settings) -> None:
    assert receive_parts.receive_limits(settings) == ReceiveLimits()
    assert default_of(StandardWebhooks, "tolerance_s") == settings.signature_tolerance_s
    layout = {"prefix", "algorithm", "encoding", "timestamp", "content", "tolerance_s"}
    given = {name: getattr(settings, f"signature_{name}") for name in layout}
    assert {name: default_of(HmacLayout, name) for name in layout} == given


def test_a_client_asks_as_often_and_waits_as_long(settings: Settings) -> None:
    assert parts.budget_limits(settings) == BudgetLimits()
    assert default_of(PaymentsClient, "timeout_s") == settings.api_timeout_s
    assert default_of(Transport, "timeout_s") == settings.api_timeout_s


def test_a_worker_takes_as_much_and_waits_as_long(settings: Settings) -> None:
    config = WorkerConfig(topic="events")
    assert default_of(Dispatcher, "concurrency") == settings.work_concurrency
    assert (config.batch, config.concurrency) == (settings.work_batch, settings.work_concurrency)
    assert (config.drain_s, config.cutoff_s, CUTOFF_S) == (settings.drain_s, *[settings.work_cutoff_s] * 2)


def test_the_log_is_reached_alike(settings: Settings) -> None:
    assert log_parts.kafka_security(settings) == KafkaSecurity()
    for log in (Broker, EmbeddedBroker, KafkaBroker):
        assert default_of(log.subscribe, "drain_s") == settings.drain_s
        assert default_of(log.publish, "timeout_s") == settings.publish_timeout_s


def test_traces_are_all_kept_and_access_outlasts_a_late_payment_as_long(settings: Settings) -> None:
    assert default_of(start_tracing, "ratio") == settings.traces_ratio
    assert Policy().past_due == settings.past_due
