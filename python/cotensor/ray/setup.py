"""Sets the processes of a Ray program up: the driver, and each worker by a hook of its runtime environment."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, Callable, Optional, Sequence

import ray
import ray.util.client

from .. import _elsewhere
from .._native import Store, model_files
from ..errors import CotensorError, NotFoundError
from .daemon import may_be_of
from .hooks import OWN_HOOK
from .process import Process, node_id
from .serialization import TRANSPORT, register


def setup() -> None:
    """Sets this process up. It connects to the daemon of its node when it sends or receives the first tensor."""
    register()
    _elsewhere.bring = _bring
    _elsewhere.bring_model = _bring_model


def _bring(store: Store, name: str) -> bool:
    """For functions of :mod:`cotensor.torch` that take a store. After ``ray.shutdown`` there are no other nodes.

    No agent starts for the store of another daemon, or of this process.
    """
    process = _process_of(store)
    if process is None:
        return False
    try:
        process.get(name).release()
    except NotFoundError:
        return False
    return True


def _bring_model(store: Store, name: str, base: str, variants: Sequence[Optional[str]]) -> str:
    """For engines that take a store, as :func:`_bring`. A name that no node has can still be that of a model of the hub."""
    process = _process_of(store)
    if process is None or any(_is_here(name, base, variant) for variant in variants):
        return name
    for variant in variants:
        try:
            return process.model(name, base, variant)
        except NotFoundError:
            if os.path.isabs(name) and variant == variants[-1]:
                raise
    return name


def _process_of(store: Store) -> Optional[Process]:
    """This process, if the store is that of its node."""
    if not ray.is_initialized() or ray.util.client.ray.is_connected() or not may_be_of(store.socket, node_id()):
        return None
    process = Process.current()
    return process if store.socket == process.store.socket else None


def _is_here(name: str, base: str, variant: Optional[str]) -> bool:
    if variant is None and os.path.isdir(os.path.join(base, name)):
        # The engine says what it lacks.
        return True
    try:
        model_files(name, base, variant)
        return True
    except CotensorError:
        return False


def offer_transport() -> None:
    """Offers Ray's direct transport under a name. A release of Ray that has another interface for it has no such transport.

    Whatever is different there, handles need nothing of it.
    """
    try:
        from . import transport

        transport.register()
    except Exception as error:
        why = f"Ray {ray.__version__} has another interface of transports: {type(error).__name__}: {error}"
        warnings.warn(f"tensor_transport={TRANSPORT!r} is not offered: {why}", RuntimeWarning, stacklevel=3)


def setup_worker() -> None:
    """The hook."""
    setup()
    own = os.environ.get(OWN_HOOK)
    if own:
        module, _, name = own.rpartition(".")
        function: Callable[[], Any] = getattr(importlib.import_module(module), name)
        function()
