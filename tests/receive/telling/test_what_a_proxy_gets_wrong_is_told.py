"""What a proxy in front gets wrong is refused with the reason that `deploy/proxy.md` names, whose numbers are those of
the settings. Nobody needs the proxy for it: these are its bytes."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from consumer.settings.load import FIELDS
from tests.receive.rig import BODY, RecordingBroker, running

PAGE = (Path(__file__).parents[3] / "deploy" / "proxy.md").read_text()
UNITS = {"s": 1, "MiB": 1024 * 1024}
WEBHOOK = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
WRONG = {
    "TLS": ("BadHttpMethod", b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03" + bytes(240)),
    "PROXY protocol, in words": ("BadHttpMethod", b"PROXY TCP4 203.0.113.9 198.51.100.7 1 2\r\n" + WEBHOOK),
    "PROXY protocol, in bytes": ("BadHttpMethod", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + WEBHOOK),
    "HTTP/2": ("BadHttpMessage", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
    "no Host": ("BadHttpMessage", WEBHOOK.replace(b"Host: x\r\n", b"")),
    "two lengths": ("BadHttpMessage", WEBHOOK.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost")),
    "many headers": ("BadHttpMessage", WEBHOOK.replace(b"Host", b"X: 1\r\n" * 130 + b"Host")),
    "a long one": ("LineTooLong", WEBHOOK.replace(b"Host", b"X: " + b"x" * 9000 + b"\r\nHost")),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_it_is_refused_with_the_reason_on_the_page(
    wrong: str, recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I10
    reason, sent = WRONG[wrong]
    async with running(recording, logs) as rig:
        assert (await rig.raw(sent)).startswith(b"HTTP/1.1 400 ")
        assert rig.count("malformed", "unknown") == 1
    assert f'"reason":"{reason}"' in logs.getvalue()
    assert f"| `malformed`, `{reason}` |" in PAGE
    assert recording.published == []


def test_the_pages_numbers_are_those_of_the_settings() -> None:
    named = re.findall(r"`(CONSUMER_\w+)` \((\d+) (s|MiB)\)", PAGE)
    assert len(named) >= 3
    assert [FIELDS[name].default for name, *_ in named] == [int(number) * UNITS[unit] for _, number, unit in named]
    [together] = re.findall(r"`CONSUMER_BODY_TIMEOUT_S` and `CONSUMER_PUBLISH_TIMEOUT_S` together \((\d+) s\)", PAGE)
    assert int(together) == sum(FIELDS[f"CONSUMER_{name}_TIMEOUT_S"].default for name in ("BODY", "PUBLISH"))
