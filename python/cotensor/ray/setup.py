"""Sets the processes of a Ray program up: the driver, and each worker by a hook of its runtime environment."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, Callable, Dict, Optional, Sequence

import ray
import ray.util.client

from .. import _elsewhere
from .._native import Store, model_files
from ..errors import CotensorError, InvalidError, NotFoundError
from .daemon import may_be_of
from .process import Process, node_id
from .serialization import TRANSPORT, register

#: The hook that Ray runs in each worker.
HOOK = "cotensor.ray.setup.setup_worker"
#: Names the hook of the program, which runs after this one.
_OWN_HOOK = "COTENSOR_RAY_SETUP_HOOK"
_KEY = "worker_process_setup_hook"
#: The variable that workers of Ray read. Ray sets it from the key in ``ray.init``, and not for an actor or a task.
_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


def runtime_env(own: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """A runtime environment for ``ray.init``, actors and tasks: the program's ``own`` one, with the hook that sets workers up.

    A hook of its own is named by a string, ``module.function``; Ray takes one hook, so that another object raises
    :class:`InvalidError`.
    """
    env = dict(own or {})
    hook = env.get(_KEY)
    variables = {**env.get("env_vars", {}), _VARIABLE: HOOK}
    if hook is None or hook == HOOK:
        return {**env, _KEY: HOOK, "env_vars": variables}
    if not isinstance(hook, str) or "." not in hook:
        raise InvalidError(f"{_KEY}: name the function as a string, such as 'module.function', not {hook!r}", field=_KEY)
    return {**env, _KEY: HOOK, "env_vars": {**variables, _OWN_HOOK: hook}}


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
    own = os.environ.get(_OWN_HOOK)
    if own:
        module, _, name = own.rpartition(".")
        function: Callable[[], Any] = getattr(importlib.import_module(module), name)
        function()
