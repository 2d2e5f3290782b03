"""Swap: the code of a mutant in the place of what is loaded. Importing a module anew, and all that imports it, takes
seconds; a function of Python can be given other code while it lives."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

Functions = dict[str, list[FunctionType]]


def functions_by_file() -> Functions:
    """All functions of this process, by the file that their code is of."""
    gc.unfreeze()  # a command freezes what it has loaded, in a test as well; what is frozen is not listed
    found: Functions = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found[one.__code__.co_filename].append(one)
    return found


def swap(functions: Sequence[FunctionType], path: str, was: str, becomes: str) -> bool:
    """Give the functions of this file the code that they have in `becomes`. False when that cannot be done."""
    new = dict(_pairs(compile(was, path, "exec"), compile(becomes, path, "exec")))
    try:
        for function in functions:
            if (code := new.get(_name(function.__code__))) is not None:
                function.__code__ = code
    except ValueError:  # it closes over other names: only the function around it could make it anew
        return False
    return True


def _pairs(was: CodeType, becomes: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    yield _name(was), becomes
    old, new = ([one for one in code.co_consts if isinstance(one, CodeType)] for code in (was, becomes))
    if [one.co_qualname for one in old] == [one.co_qualname for one in new]:
        for one, other in zip(old, new, strict=True):
            yield from _pairs(one, other)


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno
