"""Threads that a program starts inside of a session's block are in the session, too.

PyTorch's modes belong to one thread. While a session is entered, ``threading.Thread.start`` is replaced by a function that hands
the sessions of the starting thread to the new one.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, List, Mapping, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode


class _Session(Protocol):
    local: threading.local
    movers: Any
    paused: Set[int]

    @property
    def target(self) -> torch.device: ...
    @property
    def is_entered(self) -> bool: ...
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any: ...
    def for_function(self, value: Any) -> Any: ...
    def forget_places(self, *values: Any) -> List[bool]: ...
    def show(self, tensor: Any, on_device: bool) -> None: ...
    def show_as(self, tensor: Any, data: Any) -> None: ...
    def on_host(self, func: Any, args: Any, kwargs: Any) -> Any: ...
    def _pack(self, tensor: Any) -> Any: ...
    def _unpack(self, saved: Any) -> Any: ...


class Inherited(TorchFunctionMode):
    """A session in a thread that was started inside of its block. Outside of the block, functions run as they are."""

    def __init__(self, session: _Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        if self.session.is_entered:
            return self.session.__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


class Saving:
    """One entry of PyTorch's stack of hooks for saved tensors, and the session that it serves."""

    def __init__(self, session: _Session) -> None:
        self.session = session
        self.hooks = saved_tensors_hooks(self.pack, _unpack)

    def pack(self, tensor: Any) -> Any:
        """The session unpacks what it has packed, also if this entry serves another one by then."""
        return self.session, self.session._pack(tensor)


def _unpack(packed: Tuple[_Session, Any]) -> Any:
    session, saved = packed
    return session._unpack(saved)


class Thread(threading.Thread):
    """A thread that inherits no session."""


_lock = threading.Lock()
_local = threading.local()
_sessions: List[_Session] = []
_start: Callable[[threading.Thread], None] = threading.Thread.start


def session_of(mode: Any) -> Any:
    """The session of a mode, if it is the mode of one."""
    return mode.session if isinstance(mode, Inherited) else mode


def entered() -> List[_Session]:
    """The sessions of this thread, the first one first."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    found = [session_of(mode) for mode in modes]
    return [session for session in found if any(session is other for other in _sessions)]


def everywhere() -> List[_Session]:
    """The sessions that some thread is in."""
    return list(_sessions)


def begin(session: _Session) -> None:
    """Threads inherit ``session`` from now on."""
    global _start
    with _lock:
        if not _sessions and threading.Thread.start is not _start_inside:
            _start = threading.Thread.start
            threading.Thread.start = _start_inside  # type: ignore[method-assign,assignment]
        _sessions.append(session)


def end(session: _Session) -> None:
    """Ends :func:`begin`."""
    with _lock:
        _sessions[:] = [other for other in _sessions if other is not session]
        # Another library may have replaced the function as well.
        if not _sessions and threading.Thread.start is _start_inside:
            threading.Thread.start = _start  # type: ignore[method-assign,assignment]


def begin_saving(session: _Session) -> None:
    """``session`` packs what this thread saves for backward passes, until :func:`end_saving`."""
    saving = Saving(session)
    saving.hooks.__enter__()
    _local.__dict__.setdefault("saving", []).append(saving)


def end_saving(session: _Session) -> None:
    """Ends :func:`begin_saving`, also before later sessions: PyTorch takes the last entry, so each of theirs moves down."""
    entries: List[Saving] = _local.saving
    at = max([at for at, entry in enumerate(entries) if entry.session is session])
    for earlier, later in zip(entries[at:], entries[at + 1 :]):
        earlier.session = later.session
    entries.pop().hooks.__exit__()


@contextlib.contextmanager
def outside(session: object) -> Iterator[None]:
    """Functions are not intercepted by a session that this thread is in."""
    later, own = leave(session)
    try:
        yield
    finally:
        for _ in later:
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in [*own, *later]:
            _push_mode(mode)  # type: ignore[no-untyped-call]


def leave(session: object) -> Tuple[List[Any], List[Any]]:
    """Takes the last entry of a session out of this thread's modes. Returns the modes that were entered later, and the entry."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    entries = [at for at, mode in enumerate(modes) if session_of(mode) is session]
    if not entries:
        return [], []
    for _ in modes[entries[-1] :]:
        _pop_mode()  # type: ignore[no-untyped-call]
    later = list(modes[entries[-1] + 1 :])
    for mode in later:
        _push_mode(mode)  # type: ignore[no-untyped-call]
    return later, [modes[entries[-1]]]


@contextlib.contextmanager
def _inside(session: _Session) -> Iterator[None]:
    begin_saving(session)
    try:
        with Inherited(session):
            yield
    finally:
        end_saving(session)


def _start_inside(thread: threading.Thread) -> None:
    sessions = [] if isinstance(thread, Thread) else entered()
    if sessions:
        run = thread.run

        def run_inside() -> None:
            with contextlib.ExitStack() as stack:
                for session in sessions:
                    stack.enter_context(_inside(session))
                # The thread must not keep itself.
                del thread.run
                run()

        thread.run = run_inside  # type: ignore[method-assign]
    _start(thread)
