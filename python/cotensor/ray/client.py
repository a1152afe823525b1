"""Calls functions of all nodes: the own node's if it has one, else another node's."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import ray

from .. import _checks
from .._native import Tensor
from ..client import SharedTensorClient
from ..errors import CotensorError, IoError, NotFoundError, RemoteError, TimedOutError
from ..functions.call_context import check_cancelled, current_call
from ..functions.retries import not_called
from . import values
from .calls import Outcome, after_run
from .functions import Pulse, is_found_elsewhere
from .handle import Handle
from .peers import ANSWER_TIMEOUT, answer_of, answers, running_agent
from .process import Process

#: The time between two looks at the call that this one runs for, in seconds.
_CHECK_INTERVAL = 0.05
#: The time for a provider's own error of a timeout to arrive, in seconds.
_LATE = 0.1
#: The time for the node of the last call to answer before others are asked, in seconds.
_LAST_TIMEOUT = 0.5


class Client(SharedTensorClient):
    """A :class:`~cotensor.client.SharedTensorClient` that also calls functions of other nodes. Any process of a Ray program can
    have one.

    ``call_function``, ``functions``, attributes, ``has_function`` and ``list_functions`` look at this node first. A function that
    this node lacks is called on another one. Tasks and objects of providers stay on one node. A call that may have begun on
    another node is never repeated: if that node or its provider ends, it raises :class:`IoError` with the names of the function
    and the node.
    """

    def __init__(
        self,
        *,
        timeout: Optional[float] = 30,
        retry_count: int = 3,
        tensors: str = "auto",
        wait: Optional[float] = None,
        verbose_debug: bool = False,
    ) -> None:
        options = {"timeout": timeout, "retry_count": retry_count, "tensors": tensors, "wait": wait}
        self._options: Dict[str, Any] = {**options, "verbose_debug": verbose_debug}
        super().__init__(store=Process.current().store, **self._options)
        #: The node of the last call, by function.
        self._last: Dict[str, str] = {}

    def __reduce__(self) -> Any:
        """Pickles the options. Another process gets a client of its own node."""
        return _opened, (self._options,)

    def call_function(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
        *,
        timeout: Optional[float] = None,
        wait: Optional[float] = None,
    ) -> Any:
        """As :meth:`SharedTensorClient.call_function <cotensor.client.SharedTensorClient.call_function>`."""
        args, named = _checks.arguments(name, args, kwargs)

        def call(time_left: Callable[[], Optional[float]]) -> Any:
            try:
                return self._functions(time_left()).call(name, args, named, timeout=time_left())
            except NotFoundError as error:
                if not not_called(error):
                    raise
                return self._call_elsewhere(name, args, named or {}, time_left, error)

        return self._retrying(call, name, self._retries(timeout, wait))

    def has_function(self, name: str) -> bool:
        """Whether a process of any node provides the function ``name``."""
        return super().has_function(name) or next(_offering(name), None) is not None

    def list_functions(self, prefix: str = "") -> List[Dict[str, Any]]:
        """The functions of this node as :meth:`SharedTensorClient.list_functions` has them, and those that only other nodes
        have, with ``name`` and ``node``."""
        found = {each["name"]: each for each in super().list_functions(prefix)}
        for node, names in answers(Process.current().node, "functions"):
            for name in names:
                if name.startswith(prefix):
                    found.setdefault(name, {"name": name, "node": node})
        return sorted(found.values(), key=lambda each: each["name"])

    def _call_elsewhere(
        self, name: str, args: Any, kwargs: Any, time_left: Callable[[], Optional[float]], error: NotFoundError
    ) -> Any:
        handles: Optional[Tuple[Any, Any]] = None
        for node in _offering(name, self._last.get(name), _limit(time_left())):
            # They keep the tensors until the call is over.
            handles = handles or (values.sent(args, _handle), values.sent(kwargs, _handle))
            limit = _limit(time_left())
            if limit is not None and limit <= 0:
                raise TimedOutError(f"{name}: the time is over before node {node} is called", field="timeout")
            try:
                attempt = _Attempt(node, name)
            except (ValueError, IoError):
                # Its agent has ended since it answered, or the head does not answer.
                continue
            outcome = attempt.run(handles, limit)
            if outcome.error is None:
                self._last[name] = node
                try:
                    return self._received(outcome.value)
                except CotensorError as lost:
                    raise after_run(f"{name} on node {node}", lost) from lost
            if not not_called(outcome.error):
                raise _named(outcome.error, f"{name} on node {node}")
        raise error

    def _received(self, value: Any) -> Any:
        process, form = Process.current(), values.form_of(self._values["tensors"])

        def array(small: Any) -> Any:
            # Ray's are read-only.
            small = small.copy()
            if form == "tensor":
                return process.put_small(small)
            return sys.modules["torch"].from_numpy(small) if form == "torch" else small

        return values.received(value, lambda handle: process.open(handle._replace(form=form)), array)


def _handle(value: Any) -> Handle:
    process = Process.current()
    if not isinstance(value, Tensor) and hasattr(value, "detach"):
        value = value.detach()
    return process.handle_of(value) if isinstance(value, Tensor) else process.publish(value, "tensor")


def _named(error: BaseException, what: str) -> BaseException:
    """The error with the function and the node, unless it is the function's own."""
    if isinstance(error, CotensorError) and not isinstance(error, RemoteError):
        error.args = (f"{what}: {error}",)
    return error


def _limit(time_left: Optional[float]) -> Optional[float]:
    """The time for a call, which ends with the call that it is a part of."""
    outer = current_call()
    limits = [limit for limit in (time_left, outer and outer.time_left) if limit is not None]
    return min(limits, default=None)


def _offering(name: str, last: Optional[str] = None, limit: Optional[float] = None) -> Iterator[str]:
    """The nodes that offer a function: the last one that was called, then the others in the order of their answers.

    ``limit`` is the time that they have, if it is less than usual.
    """
    if not is_found_elsewhere(name):
        return
    timeout = ANSWER_TIMEOUT if limit is None else min(limit, ANSWER_TIMEOUT)
    if last is not None and answer_of(last, "offers", name, timeout=min(timeout, _LAST_TIMEOUT)):
        yield last
    for node, does in answers(Process.current().node, "offers", name, timeout=timeout):
        if does:
            yield node


class _Attempt:
    """A call on another node."""

    def __init__(self, node: str, name: str) -> None:
        self._node, self._name, self._id = node, name, uuid.uuid4().hex
        self._agent = running_agent(node)

    def run(self, arguments: Tuple[Any, Any], timeout: Optional[float]) -> Outcome:
        began = time.monotonic()
        reference = self._agent.call.remote(self._id, self._name, *arguments, timeout)
        try:
            self._wait(reference, None if timeout is None else began + timeout + _LATE)
        except BaseException:
            self._agent.cancel_call.remote(self._id)
            raise
        try:
            return ray.get(reference)  # type: ignore[no-any-return]
        except ray.exceptions.RayError as error:
            raise self._error(IoError, f"ended during the call: {str(error).splitlines()[0]}") from error

    def _wait(self, reference: Any, end: Optional[float]) -> None:
        pulse, beat = Pulse(time.monotonic()), None
        while True:
            waited = [reference] if beat is None else [reference, beat]
            done, _ = ray.wait(waited, timeout=_CHECK_INTERVAL)
            if reference in done:
                return
            now = time.monotonic()
            check_cancelled()
            if end is not None and now > end:
                raise self._error(TimedOutError, "the provider did not answer within the timeout")
            if done:
                has_answered, beat = _has_answered(beat), None
                if has_answered:
                    pulse.answered(now)
            if pulse.is_silent(now):
                raise self._error(IoError, "the node does not answer")
            if beat is None and pulse.is_due(now):
                beat = self._agent.hear.remote(self._id)
                pulse.asked(now)

    def _error(self, kind: "type[CotensorError]", problem: str) -> CotensorError:
        return kind(f"{self._name} on node {self._node}: {problem}; it may have run", field=self._name)


def _has_answered(beat: Any) -> bool:
    try:
        ray.get(beat)
        return True
    except ray.exceptions.RayError:
        return False


def _opened(options: Dict[str, Any]) -> Client:
    return Client(**options)
