"""Threads that a program starts inside of a session's block are in the session, too.

PyTorch's modes belong to one thread. While a session is entered, ``threading.Thread.start`` is :func:`start`, which hands the
sessions of the starting thread to the new one.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from .arguments import collect, unwrapped
from .known import MEMORY, TENSORS
from .operations import Kind, kind_of
from .weights import memory_of

#: The current transforms of ``torch.func`` of this thread; None: none.
transforms: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack


class Session(Protocol):
    """The parts of a session, whose files import this one."""

    devices: Any
    tensors: Any
    computing: Any
    backward: Any
    saved: Any
    pauses: Any
    optimizers: Any

    @property
    def is_entered(self) -> bool: ...
    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any: ...


class Inherited(TorchFunctionMode):
    """A session in a thread that was started inside of its block. Outside of the block, functions run as they are."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        return self.dispatch(func, args, kwargs)

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Optional[Mapping[str, Any]]) -> Any:
        """A function that the thread calls."""
        if self.session.is_entered:
            return self.session.dispatch(func, args, kwargs)
        return func(*args, **(kwargs or {}))


class Sessions(TorchFunctionMode):
    """Sessions of a thread that were entered one after another, as one mode. A function passes those that know its tensors."""

    def __init__(self, entry: Any) -> None:
        super().__init__()
        #: Sessions, also as :class:`Inherited`; the last one was entered last.
        self.entries: List[Any] = []
        #: The places of entries by what knows their tensors.
        self._places: Dict[object, List[int]] = {}
        self.insert(0, entry)

    def insert(self, place: int, entry: Any) -> None:
        """Adds a session before the one at a place."""
        self._set([*self.entries[:place], entry, *self.entries[place:]])

    def pop(self, place: int) -> Any:
        """Takes the session at a place out."""
        entry = self.entries[place]
        self._set([*self.entries[:place], *self.entries[place + 1 :]])
        return entry

    def _set(self, entries: List[Any]) -> None:
        places: Dict[object, List[int]] = {}
        for place, entry in enumerate(entries):
            for key in session_of(entry).tensors.holders():
                places.setdefault(key, []).append(place)
        self.entries, self._places = entries, places
        #: Handles the functions of a thread with one session.
        self._dispatch: Optional[Callable[..., Any]] = entries[0].dispatch if len(entries) == 1 else None

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None
    ) -> Any:
        dispatch = self._dispatch
        if dispatch is not None:
            return dispatch(func, args, kwargs)
        entries = self.entries
        if len(entries) > 1:
            if kind_of(func) is Kind.BACKWARD:
                return self._backward(func, args, kwargs or {})
            entries = self._concerned(args, kwargs or {})
        if len(entries) == 1:
            return entries[0].dispatch(func, args, kwargs)
        with contextlib.ExitStack() as stack:
            # In the same order in each thread: another one may have entered the sessions in another order.
            for lock in sorted([session_of(entry).devices.lock for entry in entries], key=id):
                stack.enter_context(lock)
            # Each of them sees the function that the program calls, the last one first.
            for entry in entries:
                _push_mode(entry)  # type: ignore[no-untyped-call]
            try:
                return func(*args, **(kwargs or {}))
            finally:
                for _ in entries:
                    _pop_mode()  # type: ignore[no-untyped-call]

    def _backward(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A backward pass is one of all sessions, which may have saved tensors."""
        sessions = [one for one in map(session_of, self.entries) if one.is_entered and not one.pauses.is_paused()]
        with contextlib.ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session.backward.running())
            stack.enter_context(backward_in(self))
            result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for session in sessions:
                session.backward.show_gradients(args, kwargs, result)
        return result

    def _concerned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> List[Any]:
        with torch._C.DisableTorchFunction():
            found, _ = collect([*args, *kwargs.values()])
            found = found if transforms() is None else [unwrapped(tensor) for tensor in found]
            keys: Set[object] = set()
            for tensor in found:
                keys.update(TENSORS.keys(id(tensor)), MEMORY.keys(memory_of(tensor)))
        entries, places = self.entries, [place for key in keys for place in self._places.get(key, ())]
        if len(places) > 1:
            return [entries[place] for place in sorted(set(places))]
        return [entries[places[0] if places else -1]]


@contextlib.contextmanager
def backward_in(mode: TorchFunctionMode) -> Iterator[None]:
    """Functions of the backward pass that this thread runs next are in a mode; of a pass inside of a transform, in none."""
    _local.backward = mode if transforms() is None else None
    try:
        yield
    finally:
        _local.backward = None


def take_backward() -> Optional[TorchFunctionMode]:
    """The mode of :func:`backward_in`, once."""
    mode, _local.backward = getattr(_local, "backward", None), None
    return mode


class Saving:
    """One entry of PyTorch's stack of hooks for saved tensors, and the session that it serves."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.hooks = saved_tensors_hooks(self.pack, _unpack)

    def pack(self, tensor: Any) -> Any:
        """The session unpacks what it has packed, also if this entry serves another one by then."""
        return self.session, self.session.saved.pack(tensor)


def _unpack(packed: Tuple[Session, Any]) -> Any:
    session, saved = packed
    return session.saved.unpack(saved)


class Thread(threading.Thread):
    """A thread that inherits no session."""


_lock = threading.Lock()
_local = threading.local()
_sessions: List[Session] = []


def session_of(mode: Any) -> Any:
    """The session of a mode, if it is the mode of one."""
    return mode.session if isinstance(mode, Inherited) else mode


def entered() -> List[Session]:
    """The sessions of this thread, the first one first."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    found = [session_of(entry) for mode in modes for entry in (mode.entries if isinstance(mode, Sessions) else [mode])]
    known = {id(session) for session in _sessions}
    return [session for session in found if id(session) in known]


def is_in(session: object) -> bool:
    """Whether this thread is in a session."""
    for mode in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        for entry in mode.entries if isinstance(mode, Sessions) else (mode,):
            if session_of(entry) is session:
                return True
    return False


def everywhere() -> List[Session]:
    """The sessions that some thread is in."""
    return list(_sessions)


def begin(session: Session) -> None:
    """Threads inherit ``session`` from now on."""
    with _lock:
        _sessions.append(session)


def end(session: Session) -> None:
    """Ends :func:`begin`."""
    with _lock:
        _sessions[:] = [other for other in _sessions if other is not session]


def _begin_saving(session: Session) -> None:
    """``session`` packs what this thread saves for backward passes, until :func:`_end_saving`."""
    saving = Saving(session)
    saving.hooks.__enter__()
    _local.__dict__.setdefault("saving", []).append(saving)


def _end_saving(session: object) -> None:
    """Ends :func:`_begin_saving`, also before later sessions: PyTorch takes the last entry, so each of theirs moves down."""
    entries: List[Saving] = _local.saving
    at = max([at for at, entry in enumerate(entries) if entry.session is session])
    for earlier, later in zip(entries[at:], entries[at + 1 :]):
        earlier.session = later.session
    entries.pop().hooks.__exit__()


def enter(entry: Any) -> None:
    """This thread is in a session, until :func:`leave`."""
    _begin_saving(session_of(entry))
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if modes and isinstance(modes[-1], Sessions):
        modes[-1].insert(len(modes[-1].entries), entry)
    else:
        _push_mode(Sessions(entry))  # type: ignore[no-untyped-call]


def leave(session: object) -> None:
    """Ends the last :func:`enter` of a session in this thread."""
    _take_out(session)
    _end_saving(session)


def _take_out(session: object) -> Callable[[], None]:
    """Takes the last entry of a session out of this thread's modes. Returns a function that puts it back."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    for at, mode in reversed(list(enumerate(modes))):
        entries = mode.entries if isinstance(mode, Sessions) else []
        places = [place for place, entry in enumerate(entries) if session_of(entry) is session]
        if places:
            return _take(modes[at:], places[-1])
    return lambda: None


def _take(modes: Sequence[Any], place: int) -> Callable[[], None]:
    """Takes an entry out of the first one of the modes on top of this thread's."""
    mode, later = modes[0], modes[1:]
    entry = mode.pop(place)
    if mode.entries:
        return lambda: mode.insert(place, entry)
    _exchange(modes, later)

    def back() -> None:
        _exchange(later, modes)
        mode.insert(place, entry)

    return back


def _exchange(modes: Sequence[Any], others: Sequence[Any]) -> None:
    """The modes on top of this thread's become others."""
    for _ in modes:
        _pop_mode()  # type: ignore[no-untyped-call]
    for mode in others:
        _push_mode(mode)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def outside(session: object) -> Iterator[None]:
    """Functions are not intercepted by a session that this thread is in."""
    back = _take_out(session)
    try:
        yield
    finally:
        back()


@contextlib.contextmanager
def _inside(session: Session) -> Iterator[None]:
    enter(Inherited(session))
    try:
        yield
    finally:
        leave(session)


class _RunInside:
    """``run`` of a thread, in sessions."""

    def __init__(self, thread: threading.Thread, sessions: List[Session]) -> None:
        self.thread, self.sessions, self.run = thread, sessions, thread.run

    def __call__(self) -> None:
        with contextlib.ExitStack() as stack:
            for session in self.sessions:
                stack.enter_context(_inside(session))
            # The thread must not keep itself.
            del self.thread.run
            self.run()


def start(thread: threading.Thread, before: Callable[[threading.Thread], None]) -> None:
    """``threading.Thread.start`` while a session is entered. ``before`` is what it was; that may start this again."""
    sessions = [] if isinstance(thread, Thread) or isinstance(thread.run, _RunInside) else entered()
    if sessions:
        thread.run = _RunInside(thread, sessions)  # type: ignore[method-assign]
    before(thread)
