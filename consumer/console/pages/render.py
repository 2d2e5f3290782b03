"""Render: templates to pages. Everything is escaped, and what would turn the direction of writing stands there visibly:
ids, customers and reasons are written by others."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from consumer.console.alarms.queues import MEANS
from consumer.console.cure import CURED, FIRST, explain, settle
from consumer.console.find import subject_of
from consumer.console.labels import LEDGER, READING
from consumer.console.pages.door import HEADERS, USER
from consumer.console.timeline import changed, words
from consumer.document import as_time, label, printable, shown
from consumer.ledger.audit import by_handler

PREFIX: Final = "/console"
FOLDER: Final = Path(__file__).parent
DONE: Final = {
    "paused": "Paused: its runs wait.",
    "resumed": "It goes on with what waited, oldest first.",
    "redriven": "They are tried again, with the same idempotency keys.",
    "discarded": "Given up; it can be taken back, on the page of what was given up.",
    "restored": "Taken back: they are dead again.",
    "thrown": "Thrown away.",
    "said": "Said; it takes effect when `work` has handled it.",
    "asked": "It is read as soon as the budget allows.",
    "nothing": "Nothing was left to do: it was no longer as the page showed it.",
}
"""What a page says after a button, by the word in its address: nobody else's text is shown."""


def page(request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:
    """A page of this template."""
    text = (
        environment()
        .get_template(template)
        .render(
            user=request.get(USER),
            done=DONE.get(request.query.get("done", "")),
            here=request.path,
            root=root(request),
            **values,
        )
    )
    return web.Response(text=text, content_type="text/html", status=status, headers=HEADERS)


@cache
def environment() -> Environment:
    """The templates; made when the first page is asked for. A name that is not there is an error."""
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        auto_reload=False,  # a file that is exchanged under a running role is the next one's
        undefined=StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"shown": shown, "told": told, "commands": commands, "words": words, "changes": changed}
    found.filters |= {"label": label, "sent": sent, "runbook": runbook, "waits": waits, "by_handler": by_handler}
    found.globals |= {"link": link, "about": about, "explain": explain, "prefix": PREFIX, "at": at}
    found.globals |= {"settle": settle, "cured": CURED, "first": FIRST, "means": MEANS}
    found.globals |= {"ledger": LEDGER, "reading": READING}
    return found


def link(page_: str, /, **query: object) -> str:
    """The address of a page, as another page says it: relative, so that a proxy may serve them below any path. What is
    None is left out. An application is named, whichever: a page without means another where `default` is not set up."""
    given = {name: value for name, value in query.items() if value is not None}
    return page_ + (f"?{urlencode(given)}" if given else "")


def root(request: web.Request) -> str:
    """The way from this address to where the pages are: `./` from a page, further from a button's address, or from one
    that leads nowhere."""
    below = request.rel_url.raw_path.removeprefix(f"{PREFIX}/")
    return "../" * below.count("/") or "./"


def about(key: str, application: str) -> Markup:
    """An aggregate's key, or a subject, as a link to what explains it."""
    subject, text = subject_of(key), printable(key)
    if subject is None:
        return escape(text)
    return Markup('<a href="{}">{}</a>').format(link(subject[0], id=subject[1], application=application), text)


def at(moment: datetime | None) -> Markup:
    """A time in UTC, as people and programs read it."""
    if moment is None:
        return Markup("-")
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), shown(moment))


def told(value: Any) -> Markup | str:
    """A value as people read it."""
    found = as_time(value)
    return at(found) if isinstance(found, datetime) else shown(found)


def commands(text: str) -> Markup:
    """A sentence whose commands stand in backticks, to be copied."""
    parts = printable(text).split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def waits(text: str) -> Markup:
    """What is waited for; the command behind it is to be copied."""
    what, found, rest = text.partition(": consumer ")
    return (
        commands(what)
        if not found
        else commands(what) + Markup(": <code>{}</code>").format(printable("consumer " + rest))
    )


def runbook(text: str) -> Markup:
    """What a handler's author tells the operator; an https address, and no other, is a link."""
    if not text.startswith("https://") or " " in text:
        return escape(printable(text))
    return Markup('<a href="{}" rel="noreferrer">{}</a>').format(text, printable(text))


def sent(value: object) -> Markup:
    """What a button sends: to the letter, unlike what is shown, or it would name another than the page does."""
    return escape(str(value))


def _final(value: Any) -> Any:
    """Every value on its way into a page."""
    if isinstance(value, Markup):
        return value
    return printable(value) if isinstance(value, str) else value
