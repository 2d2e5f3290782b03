"""Each outcome of each application is there from the start, at 0: a counter that begins with its first count shows no
increase, so the first burst of 503 after a start was no failure, and without one the share of failures was unknown."""

from __future__ import annotations

from consumer.clock import DrivenClock
from consumer.receive import answers
from consumer.receive.web import Receiver
from consumer.telemetry.metrics import Metrics
from tests.receive.rig import RecordingBroker, endpoints


# case: O5
def test_every_outcome_is_there_before_the_first_request() -> None:
    metrics = Metrics()
    Receiver(broker=RecordingBroker(), endpoints=endpoints(), clock=DrivenClock(), metrics=metrics)
    shown = {
        (application, answer.outcome): metrics.registry.get_sample_value(
            "consumer_receive_requests_total", {"application": application, "outcome": answer.outcome}
        )
        for application in ("default", "hints")
        for answer in answers.ALL
    }
    assert set(shown.values()) == {0.0}
