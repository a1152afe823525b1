"""The server that loads a module, for the providers in that module."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional

from .._native import Store

#: The environment variable that makes providers in ``auto`` mode serve.
VARIABLE = "__SHARED_TENSOR_SERVER_MODE__"


class ServerContext(NamedTuple):
    """The settings of a server for the providers of its modules."""

    store: Store
    workers: int
    timeout: Optional[float]
    cache: bool
    #: Called with each provider that is created while the server loads a module.
    join: Callable[[Any], None]


#: The server that currently loads a module.
current: Optional[ServerContext] = None


@contextmanager
def loading(context: ServerContext) -> Iterator[None]:
    """Providers that are created in the block belong to the server."""
    global current
    outer, variable = current, os.environ.get(VARIABLE)
    current, os.environ[VARIABLE] = context, "true"
    try:
        yield
    finally:
        current = outer
        if variable is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = variable
