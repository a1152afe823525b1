"""The server that loads a module, for the providers in that module."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional

from .._native import Store

if TYPE_CHECKING:
    from .provider import SharedTensorProvider

#: The environment variable that makes providers in ``auto`` mode serve.
VARIABLE = "__SHARED_TENSOR_SERVER_MODE__"


class ServerContext(NamedTuple):
    """The settings of a server for the providers of its modules."""

    store: Store
    workers: int
    timeout: Optional[float]
    cache: bool
    #: The providers that were created while the server loaded a module.
    providers: "List[SharedTensorProvider]"


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
