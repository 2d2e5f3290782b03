"""Only POST is answered; everything else is 405 with `Allow: POST`, never a redirect."""

from __future__ import annotations

import pytest

from tests.receive.rig import Rig


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/webhooks/default", "/webhooks"])
async def test_other_methods_are_405_with_allow(rig: Rig, method: str, path: str) -> None:
    # case: I13
    reply = await rig.send(b"", method=method, path=path)
    assert (reply.status, reply.headers["Allow"]) == (405, "POST")
    assert (reply.body == b"") is (method == "HEAD")
    assert (await rig.send(path=path, method="HEAD")).status == 405
