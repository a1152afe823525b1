"""Runs a function in an interpreter of its own."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, Mapping


def fresh(environment: Mapping[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of a module, computed in a new process with this environment."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, dict(environment), function, arguments).result()


def _run(environment: Mapping[str, str], function: Callable[..., Any], arguments: Any) -> Any:
    os.environ.update(environment)
    return function(*arguments)
