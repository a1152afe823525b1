"""Wrappers that run a Python function for a caller."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
from typing import Any, Awaitable, Callable, Coroutine, Dict, Iterator, Optional, Tuple

from .._native import Call
from ..errors import CancelledError, UnsupportedError
from .call_context import _current
from .lifecycle import running

#: The keyword argument that carries the call. No parameter can have this name.
CALL = "$call"
#: The interval between two checks whether the call of a coroutine was cancelled, in seconds.
CANCEL_CHECK_INTERVAL = 0.05


def signature_of(function: Callable[..., Any]) -> Optional[inspect.Signature]:
    """The function's signature; ``None`` for functions without one, such as some that are written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def check(name: str, signature: inspect.Signature, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Raises :class:`TypeError` that names a missing, surplus or unknown argument."""
    try:
        signature.bind(*args, **kwargs)
        return
    except TypeError as error:
        problem = str(error)
    shown = f"{name}{signature}"
    parameters = signature.parameters.values()
    by_name = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    unknown = [key for key in kwargs if key not in by_name]
    if unknown and not any_name:
        problem = f"unknown argument {unknown[0]!r}"
    raise TypeError(f"{shown}: {problem}") from None


@contextlib.contextmanager
def _calling(call: Optional[Call]) -> Iterator[None]:
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def handler(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``function`` for a provider: sets the current call, and names wrong arguments."""
    signature = signature_of(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = kwargs.pop(CALL, None)
        token = _current.set(call)
        try:
            with running():
                return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            # Raised by the call itself, not inside the function: the signature shows the wrong argument.
            if signature is not None and (trace is None or trace.tb_next is None):
                check(name, signature, args, kwargs)
            raise
        finally:
            _current.reset(token)

    return run


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


def _run_on(
    loop: asyncio.AbstractEventLoop, name: str, call: Optional[Call], start: Callable[[], Awaitable[Any]]
) -> Any:
    """Awaits what ``start`` returns on the loop. A cancelled call cancels it."""

    async def run_with_call() -> Any:
        with _calling(call):
            try:
                return await start()
            except (SystemExit, KeyboardInterrupt) as error:
                # They must not end the event loop and its other coroutines.
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

    with running():
        future = asyncio.run_coroutine_threadsafe(run_with_call(), loop)
        try:
            while call is not None:
                # A TimeoutError of the function is raised below.
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    return future.result(CANCEL_CHECK_INTERVAL)
                if future.done():
                    break
                if call.cancelled:
                    future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise CancelledError(f"{name} was cancelled") from None


def async_handler(
    name: str, function: Callable[..., Coroutine[Any, Any, Any]], loop: Callable[[], asyncio.AbstractEventLoop]
) -> Callable[..., Any]:
    """As :func:`handler`, for an ``async def``, which runs on the loop. A cancelled call cancels the coroutine."""
    signature = signature_of(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call: Optional[Call] = kwargs.pop(CALL, None)
        if signature is not None:
            check(name, signature, args, kwargs)
        return _run_on(loop(), name, call, lambda: function(*args, **kwargs))

    return run


def invoke(method: Callable[..., Any], call: Call, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Calls a method of an object for a caller, with the current call."""
    with _calling(call), running():
        result = method(*args, **kwargs)
    if inspect.iscoroutine(result):
        result.close()
        raise UnsupportedError(f"{call.function} is an async def: share its object with an AsyncSharedTensorProvider")
    return result


def async_invoke(loop: Callable[[], asyncio.AbstractEventLoop]) -> Callable[..., Any]:
    """As :func:`invoke`, for methods that may be ``async def``, which run on the loop."""

    def run(method: Callable[..., Any], call: Call, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with _calling(call), running():
            result = method(*args, **kwargs)
        return _run_on(loop(), call.function, call, lambda: result) if inspect.iscoroutine(result) else result

    return run


def describe(function: Callable[..., Any]) -> str:
    """A summary of a function: the first paragraph of its docstring, and its signature."""
    summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    signature = signature_of(function)
    shown = "" if signature is None else f"{getattr(function, '__name__', 'function')}{signature}"
    return ". ".join(part.rstrip(".") for part in (summary, shown) if part)
