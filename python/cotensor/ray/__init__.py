"""Cotensor on Ray: tensors in ordinary arguments, results and ``ray.put`` travel as handles, and each node has one copy.

    import cotensor.ray
    cotensor.ray.init()

``pip install cotensor[ray]``. Each node has a daemon of its own, which an :class:`~cotensor.ray.agent.Agent` starts.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

import ray
import ray.util.client

from .._native import Store, Tensor
from ..errors import UnsupportedError
from .client import Client
from .hooks import HOOK, runtime_env
from .process import Process
from .setup import offer_transport, setup
from .status import status
from .values import INLINE_BYTES_MAX

__all__ = ["HOOK", "INLINE_BYTES_MAX", "Client", "get", "init", "model", "runtime_env", "setup", "status", "store"]


def init(address: Optional[str] = None, *, runtime_env: Optional[Dict[str, Any]] = None, **options: Any) -> Any:
    """Calls ``ray.init`` with a runtime environment that sets each worker up, and sets this process up.

    ``runtime_env`` is the program's own; its ``worker_process_setup_hook`` runs after Cotensor's. ``options`` are those of
    ``ray.init``, whose result this returns. A program that calls ``ray.init`` itself passes :func:`runtime_env` to it, and
    calls :func:`setup` afterwards.
    """
    context = ray.init(address, runtime_env=_runtime_env(runtime_env), **options)
    setup()
    return context


def get(name: str) -> Tensor:
    """The tensor or group of a name: of this process's node, else of another one. It is copied to this node under its name then,
    once for all processes, and stays as any tensor of :func:`store` does.

    Raises :class:`NotFoundError` if no node has it, :class:`ConflictError` if two nodes have published different ones,
    :class:`OverBudgetError`, and :class:`IoError` if no node that has it sends it.
    """
    return Process.current().get(name)


def model(name: str, *, variant: Optional[str] = None) -> str:
    """The folder of a model on this node, for all that takes one. ``name`` is a folder, or a name on the hub. If this node lacks
    its files, they are copied from another one, once for all processes, and stay as long as this process. ``variant`` is one of
    its graphs, such as ``fp16``.

    Raises :class:`NotFoundError` if no node has it, :class:`ConflictError` if two nodes have different ones,
    :class:`OverBudgetError` without room on the disk, and :class:`IoError` if no node that has it sends it.
    """
    return Process.current().model(name, os.getcwd(), variant)


def store() -> Store:
    """The store of this process's node. All processes of the node have the same daemon.

    Raises :class:`~cotensor.UnsupportedError` in a client of Ray Client, which is on no node, and in a process that is in no
    cluster, as after ``ray.shutdown``.
    """
    if ray.util.client.ray.is_connected():
        raise UnsupportedError("a client of Ray Client (ray://) is on no node: call this in a task or an actor", field="address")
    return Process.current().store


_runtime_env = runtime_env
# Not in `setup`: decorators of modules name it, before a program has a cluster.
offer_transport()
