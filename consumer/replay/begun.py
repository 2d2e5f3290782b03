"""Begun: that a plan is half applied, and what to type then (pure)."""

from __future__ import annotations


def begun(plan: str, *, renews_keys: bool) -> str:
    """That a plan is half applied, and the commands that go on with it or end it. Pure."""
    confirms = " --new-effect-key" * renews_keys
    return (
        f"plan {plan} was begun and is not done: `consumer replay apply {plan}{confirms} --reason …` goes on with it, "
        f"`consumer replay cancel {plan} --reason …` ends it"
    )
