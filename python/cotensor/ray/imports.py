"""Runs functions when modules are imported, so that a process imports only the modules that its program uses."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Dict, Optional


class _Loader(importlib.abc.Loader):
    """A module's own loader, and a function afterwards."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], object]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # The module has its own loader afterwards, as tools expect.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._then(module)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: Dict[str, Callable[[ModuleType], object]] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Optional[ModuleSpec]:
        then = self.waiting.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            self.waiting[name] = then
            return None
        spec.loader = _Loader(spec.loader, then)
        return spec


_FINDER = _Finder()


def when_imported(name: str, then: Callable[[ModuleType], object]) -> None:
    """Calls ``then`` with the top-level module ``name``, now or when it is imported."""
    module = sys.modules.get(name)
    if module is not None:
        then(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.waiting[name] = then
