"""What a handler logs is redacted like everything else."""

from __future__ import annotations

import io

from consumer.plugin import Context, Event, handles
from consumer.testing import Workbench


# case: H12, I25
def test_secrets_and_people_do_not_reach_the_log(workbench: Workbench, stream: io.StringIO) -> None:
    @handles("order.paid", name="test:talks")
    async def talks(event: Event, ctx: Context) -> None:
        ctx.log.info("paid by buyer@example.com", customer=event.customer, api_token="t0psecret", order_id="A-1")
        ctx.log.warning("sent", note="Bearer abcdef.ghijkl", webhook="whsec_c2VjcmV0c2VjcmV0")

    workbench.run(talks, workbench.event("order.paid", order_id="A-1", customer="c-1"))
    said = stream.getvalue()
    assert '"order_id":"A-1"' in said
    assert '"handler":"test:talks"' in said
    for secret in ("buyer@example.com", "t0psecret", "abcdef.ghijkl", "c2VjcmV0", "c-1"):
        assert secret not in said
