"""Settings and code in words that are the same in every process, and other words for what computes otherwise."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import logging
import pathlib
import re
import types
import weakref
from typing import Any, Dict, List, Optional, Tuple

import numpy
import torch

from .._native import content_hash
from ._code import code_of, is_library, place
from ._tree import NotShared

#: How deep settings and code are looked into; what is deeper is not shared.
_DEPTH_MAX = 48
#: How many functions and classes of a module are looked at.
_SEEN_MAX = 20_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_PLAIN_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
#: What a class has that says nothing about what its objects compute.
_CLASS_BOOKKEEPING = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __annotate__ __annotate_func__ __annotations_cache__ "
    "__abstractmethods__ _abc_impl __firstlineno__ __static_attributes__ __orig_bases__ __parameters__ __slots__ __match_args__ "
    "__dataclass_params__ __dataclass_fields__ __hash__".split()
)
_CODE = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


def fields(value: Any) -> Dict[str, Any]:
    """The values of a dataclass, a namespace or a configuration."""
    slots = dataclasses.fields(value) if _is_dataclass(value) else ()
    found = {field.name: getattr(value, field.name, None) for field in slots}
    found.update(getattr(value, "__dict__", {}))
    return found


def has_fields(value: Any) -> bool:
    """Whether it is one of those, rather than anything else with attributes."""
    return isinstance(value, types.SimpleNamespace) or _is_dataclass(value) or _has_to_dict(value)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_to_dict(value: Any) -> bool:
    return callable(getattr(type(value), "to_dict", None))


class Words:
    """The words for the settings and the code of one module.

    A function or a class is told where it comes first, and by its number after that. What cannot be told raises
    :class:`NotShared`: it could be different where everything else is equal.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._places = {id(part): name for name, part in module.named_modules()}
        named = (*module.named_parameters(), *module.named_buffers())
        self._tensors = {id(tensor): name for name, tensor in named}
        # The objects as well, so that another cannot have their identity meanwhile.
        self._seen: Dict[int, Tuple[int, Any]] = {}

    def of(self, value: Any, depth: int = 0, lenient: bool = False) -> str:
        """A value in words. ``lenient`` takes the objects of a library by their type, for what only the library refers to."""
        kind = type(value)
        if kind in _PLAIN or kind in _PLAIN_TORCH:
            return repr(value)
        if depth > _DEPTH_MAX:
            raise NotShared("settings nested too deeply")
        depth += 1
        if isinstance(value, torch.nn.Module):
            if id(value) not in self._places:
                raise NotShared("a module among the settings that is no submodule")
            return f"module {self._places[id(value)]!r}"
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                raise NotShared("a tensor that is neither parameter nor buffer")
            return f"tensor {self._tensors[id(value)]!r}"
        if isinstance(value, type):
            return self._class(value, depth)
        if isinstance(value, enum.Enum):
            return f"{self._class(kind, depth)} {value.name} {self.of(value._value_, depth)}"
        if kind in (list, tuple, collections.deque) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return f"{kind.__qualname__}[{', '.join(self.of(item, depth, lenient) for item in value)}]"
        if kind in (set, frozenset):
            return f"{kind.__name__}{{{', '.join(sorted(self.of(item, depth, lenient) for item in value))}}}"
        if kind in (dict, collections.OrderedDict, types.MappingProxyType):
            return self._mapping(value, depth, lenient)
        if kind is collections.defaultdict:
            return f"default {self.of(value.default_factory, depth)} {self._mapping(value, depth, lenient)}"
        if kind is slice:
            return f"slice {self.of((value.start, value.stop, value.step), depth, lenient)}"
        told = self._callable(value, depth, lenient)
        return self._object(value, depth, lenient) if told is None else told

    def _mapping(self, value: Any, depth: int, lenient: bool) -> str:
        shown = (f"{self.of(key, depth, lenient)}: {self.of(item, depth, lenient)}" for key, item in value.items())
        return f"{{{', '.join(shown)}}}"

    def _object(self, value: Any, depth: int, lenient: bool) -> str:
        kind = type(value)
        if isinstance(value, re.Pattern):
            return f"pattern {value.pattern!r} {value.flags}"
        if isinstance(value, (numpy.generic, pathlib.PurePath)):
            return f"{kind.__name__} {value!r}"
        if isinstance(value, types.ModuleType) and is_library(value.__name__):
            return f"import {place(value.__name__, '')}"
        if isinstance(value, logging.Logger):
            return "logger"
        if isinstance(value, weakref.ref):
            return f"weak {self.of(value(), depth, lenient)}"
        if kind.__module__ in ("torch._ops", "dataclasses"):
            # Operators, and the marks that a dataclass' functions have as defaults.
            return f"{kind.__name__} {value}" if kind.__module__ == "torch._ops" else kind.__name__
        if has_fields(value):
            try:
                told = value.to_dict() if _has_to_dict(value) else fields(value)
                told = {str(key): told[key] for key in sorted(told, key=str)}
            except Exception as error:  # whatever somebody's class does
                raise NotShared(f"settings that cannot be read: {type(error).__name__}") from error
            return f"{self._class(kind, depth)} {self._mapping(told, depth, lenient)}"
        if lenient and is_library(kind.__module__) and not isinstance(value, torch.Generator):
            return place(kind.__module__, kind.__qualname__)
        raise NotShared(f"a setting of type {kind.__qualname__}")

    def _callable(self, value: Any, depth: int, lenient: bool) -> Optional[str]:
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            return f"method {self.of(value.__func__, depth)} of {self.of(value.__self__, depth, lenient)}"
        if type(value) is functools.partial:
            return f"partial {self.of((value.func, value.args, value.keywords), depth, lenient)}"
        if isinstance(value, (staticmethod, classmethod)):
            return f"{type(value).__name__} {self.of(value.__func__, depth, lenient)}"
        if isinstance(value, property):
            return f"property {self.of((value.fget, value.fset), depth, lenient)}"
        if isinstance(value, functools.cached_property):
            return f"property {self.of(value.func, depth, lenient)}"
        if isinstance(value, functools._lru_cache_wrapper):
            return f"cached {self.of(value.__wrapped__, depth, lenient)}"
        if isinstance(value, numpy.ufunc):
            return f"ufunc {value.__name__}"
        if isinstance(value, _BUILTINS):
            owner = getattr(value, "__objclass__", getattr(value, "__self__", None))
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):
                raise NotShared(f"a method of a {type(owner).__qualname__}")
            return f"builtin {place(getattr(value, '__module__', ''), value.__qualname__)} {getattr(owner, '__name__', '')}"
        return None

    def _first(self, value: Any) -> Tuple[bool, str]:
        known = self._seen.get(id(value))
        if known is not None:
            return False, f"#{known[0]}"
        if len(self._seen) >= _SEEN_MAX:
            raise NotShared("too much code")
        self._seen[id(value)] = (len(self._seen), value)
        return True, f"#{len(self._seen) - 1}"

    def _function(self, function: Any, depth: int) -> str:
        """Its code, and what that refers to: defaults, the variables around it, and globals."""
        first, number = self._first(function)
        if not first:
            return number
        # Not __module__, which a decorator takes from what it decorates.
        module = function.__globals__.get("__name__")
        library = is_library(module)
        code = code_of(function.__code__)
        parts = [number, place(module, function.__qualname__), code.hash]
        parts.append(self.of((function.__defaults__, function.__kwdefaults__), depth, library))
        for cell in function.__closure__ or ():
            try:
                parts.append(self.of(cell.cell_contents, depth, library))
            except ValueError:  # not assigned yet
                parts.append("empty")
        if "__wrapped__" in vars(function):
            parts.append(self.of(function.__wrapped__, depth, library))
        if not library:
            for name in code.globals:
                if name in function.__globals__:
                    parts += [name, self._global(function.__globals__[name], code.attributes, depth)]
                elif not hasattr(builtins, name):
                    parts += [name, "missing"]
        return f"function {content_hash(*parts)}"

    def _global(self, value: Any, attributes: Any, depth: int) -> str:
        if not isinstance(value, types.ModuleType) or is_library(value.__name__):
            return self.of(value, depth)
        # A module of somebody's: what of it the function may mean.
        if depth > _DEPTH_MAX:
            raise NotShared("settings nested too deeply")
        found = sorted(name for name in vars(value) if name in attributes)
        parts = [f"{name} {self._global(vars(value)[name], attributes, depth + 1)}" for name in found]
        return f"import {value.__name__} {parts}"

    def _class(self, kind: type, depth: int) -> str:
        return place(kind.__module__, kind.__qualname__) if is_library(kind.__module__) else self.code(kind, depth)

    def code(self, kind: type, depth: int = 0) -> str:
        """All the code that objects of the class have, and what else somebody's class has."""
        parts = [place(kind.__module__, kind.__qualname__)]
        for base in kind.__mro__:
            if base not in (object, torch.nn.Module) and base.__module__ not in ("builtins", "typing", "enum", "abc"):
                first, number = self._first(base)
                parts.append(number)
                parts += self._own(base, depth) if first else []
        return f"class {content_hash(*parts)}"

    def _own(self, kind: type, depth: int) -> List[str]:
        library = is_library(kind.__module__)
        parts = [place(kind.__module__, kind.__qualname__)]
        if issubclass(kind, enum.Enum):
            parts += [f"{name} {self.of(one._value_, depth)}" for name, one in kind.__members__.items()]
        for name, value in sorted(vars(kind).items()):
            descriptor = isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if name in _CLASS_BOOKKEEPING or descriptor or type(value).__name__ == "_tuplegetter":
                continue
            if isinstance(value, _CODE) or not (library or issubclass(kind, enum.Enum)):
                parts += [name, self.of(value, depth, library)]
        return parts
