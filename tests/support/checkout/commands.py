"""Commands as a document or a manifest names them: are they ours, with these options?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer.main

from consumer.cli.tree import tree


def is_command(words: Sequence[str]) -> bool:
    """Whether `consumer WORDS…` is a command that ends in no more sub-commands and has all these options."""
    node: Any = typer.main.get_command(tree())
    rest = list(words)
    while rest and (commands := getattr(node, "commands", None)) is not None and rest[0] in commands:
        node = commands[rest.pop(0)]
    if getattr(node, "commands", None) is not None and not getattr(node, "invoke_without_command", False):
        return False
    options = {option for parameter in node.params for option in parameter.opts}
    return all(word in options for word in rest if word.startswith("--"))
