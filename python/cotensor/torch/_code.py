"""What a function's code is, the same in every process."""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Any, FrozenSet, List, NamedTuple

from .._native import content_hash

#: Their versions say what they do, so what their functions refer to is not looked at.
_LIBRARIES = frozenset({"torch", "torchvision", "torchaudio", "transformers", "numpy", "cotensor", "safetensors", "builtins"})
_STDLIB: FrozenSet[str] = frozenset(getattr(sys, "stdlib_module_names", sys.builtin_module_names)) - {"__main__"}


def is_library(name: object) -> bool:
    """Whether a module, by its name, is of Python, torch, or what comes with it."""
    root = str(name).partition(".")[0]
    return root in _LIBRARIES or root in _STDLIB


def place(module: object, name: object) -> str:
    """Where something is; of a library with its version, as that says what it does."""
    root = sys.modules.get(str(module).partition(".")[0])
    version = getattr(root, "__version__", "") if is_library(module) else ""
    return f"{version!s} {module!s}.{name!s}"


class Code(NamedTuple):
    """A function's code: its hash, the globals it reads, and the attributes, among them those of modules."""

    hash: str
    globals: List[str]
    attributes: FrozenSet[str]


@functools.lru_cache(maxsize=16384)
def code_of(code: types.CodeType) -> Code:
    """What is known of it, and of what is defined within it."""
    parts = [code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex()]
    parts.append(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)))
    parts.append(repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)))
    names, attributes = set(), set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = code_of(constant)
            parts.append(f"code {inner.hash}")
            names.update(inner.globals)
            attributes |= inner.attributes
        else:
            parts.append(_constant(constant))
    return Code(content_hash(*parts), sorted(names), frozenset(attributes))


def _constant(value: Any) -> str:
    # The order of a set is another in every process.
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)
