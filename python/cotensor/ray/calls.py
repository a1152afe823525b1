"""Calls of other nodes for functions of this one: the agent's part. See :mod:`cotensor.ray.client`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional

from .._native import Store, Tensor
from ..async_client import AsyncSharedTensorClient
from ..errors import CancelledError, CotensorError, IoError, UnsupportedError
from ..functions.retries import not_called
from . import values
from .functions import PULSE_INTERVAL, Calls, is_found_elsewhere
from .handle import Handle, copied, reduced, spec_of

#: Calls that run at a time on a node for other nodes.
CALLS_MAX = 64
#: The time limit of a call whose arguments took all of its time, in seconds.
_TIMEOUT_MIN = 0.001


class Outcome(NamedTuple):
    """How a call has ended."""

    value: Any = None
    error: Optional[BaseException] = None


def after_run(what: str, error: BaseException) -> BaseException:
    """The error of a call whose function has run, so that it is not called again."""
    return IoError(f"{what} has run, and its result is lost: {error}", field="result") if not_called(error) else error


class Callee:
    """Calls functions of the own daemon only, so that a call is never passed on twice.

    ``opened`` opens the handle of another node's tensor, ``keep`` makes a token for a tensor of this store.
    """

    def __init__(
        self, node: str, store: Store, opened: Callable[[Handle], Tensor], keep: Callable[[Tensor], Any]
    ) -> None:
        self._node, self._store, self._opened, self._keep = node, store, opened, keep
        self._client = AsyncSharedTensorClient(timeout=None, retry_count=0, store=store, tensors="cotensor")
        self._calls = Calls()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="calls", daemon=True).start()
        threading.Thread(target=self._end_silent, name="callers", daemon=True).start()

    def functions(self) -> List[str]:
        """The names of the functions that other nodes find here."""
        try:
            return [each["name"] for each in self._client.list_functions() if is_found_elsewhere(each["name"])]
        except CotensorError:
            return []

    def offers(self, name: str) -> bool:
        """Whether other nodes find this function here."""
        return is_found_elsewhere(name) and self._client.has_function(name)

    def running(self) -> List[str]:
        """The functions that run for other nodes."""
        return self._calls.running()

    def hear(self, call: str) -> None:
        """A sign of life of a call's caller."""
        self._calls.hear(call, time.monotonic())

    def cancel(self, call: str) -> None:
        """The caller waits no more."""
        self._calls.cancel(call, time.monotonic())

    def call(self, call: str, name: str, args: Any, kwargs: Any, timeout: Optional[float]) -> Outcome:
        """Runs a call of another node, and waits for it."""
        began = time.monotonic()
        try:
            args, kwargs = (values.received(each, self._opened, lambda array: array) for each in (args, kwargs))
        except CotensorError as error:
            return Outcome(error=error)
        if timeout is not None:
            timeout = max(timeout - (time.monotonic() - began), _TIMEOUT_MIN)
        calling = self._client.call_function(name, args, kwargs, timeout=timeout)
        future = asyncio.run_coroutine_threadsafe(calling, self._loop)
        self._calls.begin(call, name, future.cancel, time.monotonic())
        has_run = False
        try:
            result = future.result()
            has_run = True
            return Outcome(values.sent(result, self._handle_of))
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            return Outcome(error=CancelledError(f"{name} was cancelled"))
        except Exception as error:
            return Outcome(error=after_run(name, error) if has_run else error)
        finally:
            self._calls.end(call)

    def _handle_of(self, value: Any) -> Handle:
        tensor: Tensor = value
        view = None
        try:
            _, _, id_, view = reduced(tensor)
        except UnsupportedError:
            # In the memory of a call.
            tensor = copied(self._store, value)
            id_ = tensor.id
        with self._store.lease(id_) as whole:
            return Handle(self._node, whole.name, id_, spec_of(whole), view, "tensor", self._keep(whole))

    def _end_silent(self) -> None:
        while True:
            time.sleep(PULSE_INTERVAL)
            self._calls.cancel_silent(time.monotonic())
