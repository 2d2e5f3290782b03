"""Build: puts a worker together from its parts, and says which part is told what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consumer.broker.base import Broker
from consumer.clock import Clock
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.processes import worker_id
from consumer.ledger.tables import RunStatus
from consumer.telemetry.loop_watch import LoopWatch
from consumer.work.dispatch.breakers import Breakers
from consumer.work.dispatch.dispatcher import Dispatcher
from consumer.work.dispatch.patience import PATIENT_S
from consumer.work.dispatch.result_writer import Result
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.execution.loop_pool import Harm, LoopPool
from consumer.work.execution.watchdog import Watchdog
from consumer.work.ingest.ingest import Ingest
from consumer.work.ingest.onwards import GENERATIONS
from consumer.work.observer import Observer
from consumer.work.outbound.dead_letters import DeadLetters
from consumer.work.outbound.relay import Relay
from consumer.work.pausing.pauser import Pauser
from consumer.work.registry import Registry
from consumer.work.rounds.backlog import Backlog
from consumer.work.rounds.housekeeping import Housekeeping
from consumer.work.rounds.poll_loop import PollLoop
from consumer.work.rounds.position import Position
from consumer.work.worker import Worker, WorkerConfig


def build_worker(
    *,
    database: Database,
    broker: Broker,
    registry: Registry,
    contexts: Contexts,
    locators: Mapping[str, Locators],
    clock: Clock,
    observer: Observer,
    config: WorkerConfig,
    watch: LoopWatch | None = None,
    give_up: Callable[[str, str], None] | None = None,
    process: str | None = None,
) -> Worker:
    """Put a worker together; `locators` per application, `watch` on the loop it is going to run on, `give_up` (handler,
    reason) ends the process when a handler blocks it, or ignores that its time is over, and cannot be cut off.
    `process`: its name in the ledger, that of its heartbeat; one of its own, where it has none.
    """
    name = process or worker_id()
    pauser = Pauser(
        database=database, registry=registry, clock=clock, observer=observer, worker=name, applications=locators
    )
    executor = Executor(LoopPool(on_harm=pauser.harm, lost_after_s=config.lost_after_s), give_up=give_up)
    breakers = Breakers(observer.breaker, clock.monotonic, locators)
    relay = Relay(database=database, broker=broker, topic=config.topic, clock=clock, worker=name)
    dead_letters = DeadLetters(
        database=database,
        broker=broker,
        topic=config.dead_topic or f"{config.topic}.dead",
        clock=clock,
        leads=lambda: relay.leads,
    )

    def observe(result: Result) -> None:
        observer.run(result)
        pauser.result(result)
        if result.finish.status is RunStatus.DEAD:
            dead_letters.wake()

    ingest = Ingest(
        database=database,
        registry=registry,
        locators=locators,
        contexts=contexts,
        executor=executor,
        clock=clock,
        worker=name,
        room=lambda handler, new: dispatcher.room(handler, new),
        generations=GENERATIONS,
    )
    dispatcher = Dispatcher(
        database=database,
        registry=registry,
        contexts=contexts,
        executor=executor,
        breakers=breakers,
        clock=clock,
        worker=name,
        concurrency=config.concurrency,
        patient_s=PATIENT_S,
        observe=observe,
        on_emitted=relay.wake,
        on_deadly=pauser.deadly,
    )

    def cut(harm: Harm) -> None:
        dispatcher.go_singly(harm.handler)
        pauser.cut(harm)

    position = Position(database=database, topic=config.topic, clock=clock)
    poll_loop = PollLoop(
        database=database,
        broker=broker,
        topic=config.topic,
        group=config.group,
        batch=config.batch,
        drain_s=config.drain_s,
        ingest=ingest,
        dispatcher=dispatcher,
        relay=relay,
        pauser=pauser,
        position=position,
        clock=clock,
        observer=observer,
    )
    backlog = Backlog(database=database, lag=poll_loop.lag, clock=clock, observer=observer)
    housekeeping = Housekeeping(
        database=database,
        registry=registry,
        ingest=ingest,
        dispatcher=dispatcher,
        executor=executor,
        breakers=breakers,
        pauser=pauser,
        position=position,
        backlog=backlog,
        clock=clock,
        observer=observer,
    )
    return Worker(
        poll_loop=poll_loop,
        ingest=ingest,
        dispatcher=dispatcher,
        relay=relay,
        dead_letters=dead_letters,
        housekeeping=housekeeping,
        backlog=backlog,
        executor=executor,
        pauser=pauser,
        watchdog=Watchdog(config.cutoff_s, on_cut=cut, give_up=give_up),
        drain_s=config.drain_s,
        watch=watch,
    )
