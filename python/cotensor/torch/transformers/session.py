"""The state of a ``with shared_weights(...)`` block, and of one model that is made inside."""

from __future__ import annotations

import contextvars
import dataclasses
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import Iterator, List, Optional, Tuple

import torch

from ..._forks import renewed
from ..._native import Store
from ..progress import Progress
from ..weights.assign import Naming
from .origin import Origin


@dataclasses.dataclass
class Session:
    """One ``with shared_weights(...)`` block."""

    name: str
    store: Store
    requires_grad: Optional[bool]
    progress: Progress
    #: Whether published weights of another origin are taken.
    force: bool
    #: The published names of the models of this block.
    shared: List[str] = dataclasses.field(default_factory=list)
    #: False after the block. Tasks and threads that started inside keep its context.
    open: bool = True


@dataclasses.dataclass
class Loading:
    """One model during its construction."""

    session: Session
    #: Where its weights come from, once that is known.
    origin: Origin = dataclasses.field(default_factory=lambda: Origin("a state dict"))
    #: The published name of its weights, once it is known.
    weights: Optional["Weights"] = None
    #: The device that the program asks for: the host, or a CUDA device.
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    #: Whether transformers computes the non-persistent buffers of the loaded model, from its own configuration.
    computes_buffers: bool = False
    #: The lock of the process that loads the weights while others wait.
    turn: ExitStack = dataclasses.field(default_factory=ExitStack)
    #: Whether the model has its weights. Later loads into it, such as adapters, are not shared.
    done: bool = False


@dataclasses.dataclass
class Weights:
    """The name under which a model's weights are published, or will be."""

    name: str
    is_published: bool
    #: The model's names for the published ones.
    names: Naming = Naming()
    #: The generator's state after the model was made, if some weights are random.
    generator: Optional[torch.Tensor] = None


#: The blocks of this asyncio task or thread.
_sessions: "contextvars.ContextVar[Tuple[Session, ...]]" = contextvars.ContextVar("sessions", default=())
#: The model under construction in this task or thread.
_loading: "contextvars.ContextVar[Optional[Loading]]" = contextvars.ContextVar("loading", default=None)
#: Serializes the construction of models, because transformers replaces methods of all threads meanwhile.
_making = renewed(sys.modules[__name__], "_making", threading.RLock)


def open_session(session: Session) -> None:
    """Starts a block."""
    _sessions.set((*_sessions.get(), session))


def close_session(session: Session) -> None:
    """Ends a block."""
    session.open = False
    _sessions.set(tuple(other for other in _sessions.get() if other is not session))


def current_loading() -> Optional[Loading]:
    """The model under construction that needs shared weights."""
    loading = _loading.get()
    return None if loading is None or loading.done else loading


def current_session() -> Optional[Session]:
    """The innermost open block."""
    return next((session for session in reversed(_sessions.get()) if session.open), None)


@contextmanager
def one_model() -> Iterator[Optional[Loading]]:
    """Tracks the construction of one model. Yields ``None`` outside of a block, and inside the construction of another model."""
    session = current_session()
    if session is None:
        yield None
        return
    with _making:
        outer = _loading.get()
        # After the wait for other threads, which may draw random numbers.
        loading = None if outer is not None and not outer.done else Loading(session)
        token = _loading.set(loading)
        try:
            with loading.turn if loading is not None else ExitStack():
                yield loading
        finally:
            _loading.reset(token)
