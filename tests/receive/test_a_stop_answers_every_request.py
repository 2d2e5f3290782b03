"""A stop ends every request with a true 200 or a 503."""

from __future__ import annotations

import asyncio
import io

from tests.receive.rig import RecordingBroker, running


async def test_requests_in_flight_end_true_and_later_ones_are_503(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I4, O8
    asked, release = recording.hold()
    async with running(recording, logs) as rig:
        early = asyncio.create_task(rig.signed())
        await asyncio.wait_for(asked.wait(), 5)
        rig.receiver.begin_closing()
        recording.answer = None
        closing = await rig.signed()
        assert (closing.status, closing.headers["Connection"]) == (200, "close")
        stopping = asyncio.create_task(rig.receiver.stop(20))
        await asyncio.sleep(0)
        late = await rig.signed()
        assert (late.status, late.code, late.headers["Retry-After"]) == (503, "stopping", "5")
        assert not stopping.done()
        release.set()
        assert (await early).status == 200
        assert await stopping == 0
        assert await rig.receiver.stop(1) == 0
        assert len(recording.published) == 2


async def test_a_stop_is_bounded(recording: RecordingBroker, logs: io.StringIO) -> None:
    # case: I4
    asked, release = recording.hold()
    async with running(recording, logs) as rig:
        request = asyncio.create_task(rig.signed())
        await asyncio.wait_for(asked.wait(), 5)
        assert await rig.receiver.stop(0.05) == 1
        release.set()
        assert (await request).status == 200
