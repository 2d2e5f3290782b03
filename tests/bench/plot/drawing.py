"""All that was measured as one drawing: how far each is from its bar."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from jinja2 import Environment, PackageLoader

from tests.bench.ratio import Measured, Ratio

WIDEST = 2.0
"""Bars end here: at twice what is asked."""
_PAGE = Environment(
    loader=PackageLoader("tests.bench.plot", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
)


def drawing(measured: Sequence[Measured]) -> str:
    """An SVG: a line for each, its length the share of its bar that it reached."""
    lines = [
        {"what": one.what, "width": min(one.share, WIDEST), "good": one.good, "said": _said(one)} for one in measured
    ]
    return _PAGE.get_template("page.svg.j2").render(lines=lines, widest=WIDEST)


def _said(one: Measured) -> str:
    if isinstance(one, Ratio):
        low, high = (found(ours / baseline for ours, baseline in one.rounds) for found in (min, max))
        asked = f", at least {one.bar:g}" if one.bar else ""
        spread = f" ({low:.2f} to {high:.2f})" if len(one.rounds) > 1 else ""
        return f"{one.value:.2f}{spread} of {median(b for _, b in one.rounds):,.0f}/s{asked}"
    return f"{one.value:.2f} {one.unit}, at most {one.most:g}"
