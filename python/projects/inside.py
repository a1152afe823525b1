"""The part of the plugin in the processes that run tests: sets the device of a project's tests, and offloads their models."""

from __future__ import annotations

import importlib
import random
import sys
import unittest
from typing import Any, Dict, Iterator, Optional

import numpy
import pytest
import torch

import cotensor.tensorref
from cotensor.tensorref.simulated.memory import MEMORIES

from . import offloading


class Inside:
    """Hooks of pytest for one mode."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self._offloading: Optional[offloading.Offloading] = None
        mode, made = settings["mode"], settings["models"] == "made"
        if mode != "host":
            # Before the first backward pass of the process.
            cotensor.tensorref.simulated_device()
        for name, value in settings["variables"].items():
            _assign(name, value)
        if mode != "host" and made:
            torch.set_default_device(offloading.DEVICE)
        if mode not in ("host", "plain"):
            self._offloading = offloading.Offloading(mode, settings["memory"])
            offloading.offload_moved(self._offloading)
            if made:
                offloading.offload_made(self._offloading)

        if self._offloading is not None:
            # Some projects check what a test has left before pytest sees its end.
            run: Any = unittest.TestCase._callTestMethod  # type: ignore[attr-defined]

            def run_and_disable(case: Any, method: Any) -> Any:
                try:
                    return run(case, method)
                finally:
                    self._disable()

            setattr(unittest.TestCase, "_callTestMethod", run_and_disable)  # noqa: B010

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Each test has the same random numbers with all modes, and models of its own."""
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        if self._offloading is not None:
            self._offloading.count = 0
        yield
        self._disable()
        for simulated in MEMORIES:
            simulated.forget_failure()

    def _disable(self) -> None:
        if self._offloading is not None:
            self._offloading.disable_all()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Notes how many models were offloaded."""
        if call.when == "teardown" and self._offloading is not None:
            item.user_properties.append(("offloaded", self._offloading.count))
        yield


def _assign(name: str, value: str) -> None:
    """Sets a variable of a module, or what a function returns, also where it was imported from there."""
    path, _, attribute = name.removesuffix("()").rpartition(".")
    module: Any = importlib.import_module(path)
    before = getattr(module, attribute)
    if not name.endswith("()"):
        setattr(module, attribute, value)
        return
    for other in list(sys.modules.values()):
        if getattr(other, "__dict__", {}).get(attribute) is before:
            setattr(other, attribute, lambda: value)
