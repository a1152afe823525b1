"""Hugging Face transformers: models that are constructed on shared weights."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
import os
import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from .. import _checks
from .._native import Store
from ..errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from . import _format
from ._collect import places
from ._progress import Progress
from ._store import loading, resolve
from .models import attach, publish

logger = logging.getLogger("cotensor.torch")


@dataclasses.dataclass
class _Session:
    """One ``with shared_weights(...)``."""

    name: str
    store: Store
    requires_grad: Optional[bool]
    progress: Progress
    #: While a model is being made: what its parts make is part of it.
    busy: bool = False
    #: What the model was loaded from, as far as it is known.
    files: Optional[List[List[Any]]] = None
    attaching: bool = False
    #: Until the block ends. Tasks and threads that begin inside have its context, and keep it.
    open: bool = True
    thread: int = dataclasses.field(default_factory=threading.get_ident)


#: Of each thread, and of each task of asyncio's.
_sessions: "contextvars.ContextVar[Tuple[_Session, ...]]" = contextvars.ContextVar("sessions", default=())
_patch_lock = threading.Lock()
#: transformers replaces methods for all threads while it makes a model; two at once may leave them replaced.
_making = threading.RLock()
_patched = 0
_originals: List[Tuple[Any, str, Any]] = []


@contextmanager
def shared_weights(
    name: str,
    store: Optional[Store] = None,
    *,
    requires_grad: Optional[bool] = None,
    progress: Progress = None,
) -> Iterator[None]:
    """Inside, a model of Hugging Face transformers that is made by ``from_pretrained`` or ``from_config`` uses the
    weights published under ``name``; unmodified models, whatever ``Auto`` class::

        with cotensor.torch.shared_weights("bert"):
            model = AutoModel.from_pretrained(folder)

    If they are published, the model is made on the meta device and attached: it never has memory of its own for them.
    If not, it is loaded as usual, published, and attached, so that its own copy is freed. Of several processes that
    start together one does that while the others wait.

    One name is one model: use a context for each. ``requires_grad`` is as for :func:`attach`, ``progress`` as for
    :func:`publish`. Only models made by the thread that entered are meant,
    and by the task of asyncio, if it is one, and those that it starts. To load a checkpoint that has changed,
    remove the name, or use another. Weights that :func:`publish` put there are taken as they are, whatever files
    ``from_pretrained`` names: they may be trained or quantised since.

    Raises :class:`ConflictError` when what a block like this published under ``name`` was made by ``from_config``, or
    came from other files than ``from_pretrained`` is to read; :class:`InvalidError` naming the parameter that does not
    fit; :class:`UnsupportedError` without transformers 5 or newer, or with a ``device_map`` other than the host.
    """
    if not isinstance(name, str):
        raise InvalidError(f"a name is expected, not {type(name).__name__}", field="name")
    if requires_grad is not None:
        _checks.truth(requires_grad, "requires_grad")
    session = _Session(name, resolve(store), requires_grad, progress)
    _patch()
    _sessions.set((*_sessions.get(), session))
    try:
        yield
    finally:
        session.open = False
        _sessions.set(tuple(other for other in _sessions.get() if other is not session))
        _unpatch()


def _current() -> Optional[_Session]:
    me = threading.get_ident()
    return next((session for session in reversed(_sessions.get()) if session.open and session.thread == me), None)


def _patch() -> None:
    global _patched
    with _patch_lock:
        if _patched == 0:
            try:
                from transformers.modeling_utils import PreTrainedModel
            except ImportError:
                raise UnsupportedError(
                    "shared_weights is for Hugging Face transformers, which is not installed"
                ) from None
            wrappers: Dict[str, Callable[[Any], Any]] = {
                "from_pretrained": _from_pretrained,
                "_from_config": _from_config,
                "_load_pretrained_model": _load,
                "_finalize_model_loading": _finalize,
            }
            missing = [method for method in wrappers if method not in vars(PreTrainedModel)]
            if missing:
                raise UnsupportedError(
                    f"this needs transformers 5: there is no PreTrainedModel.{missing[0]} in this one"
                )
            for method, wrapper in wrappers.items():
                original = vars(PreTrainedModel)[method]
                _originals.append((PreTrainedModel, method, original))
                wrapped: Any = type(original)(functools.wraps(original.__func__)(wrapper(original.__func__)))
                setattr(PreTrainedModel, method, wrapped)
        _patched += 1


def _unpatch() -> None:
    global _patched
    with _patch_lock:
        _patched -= 1
        if _patched == 0:
            while _originals:
                owner, method, original = _originals.pop()
                setattr(owner, method, original)


def _from_pretrained(original: Any) -> Any:
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return _make(lambda: original(cls, *args, **kwargs), lambda: original(cls, *args, **kwargs))

    return from_pretrained


def _from_config(original: Any) -> Any:
    def _from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
        def build() -> Any:
            with ExitStack() as contexts:
                contexts.enter_context(torch.device("meta"))
                contexts.enter_context(_safe_creation())
                model = original(cls, config, **kwargs)
            session = _current()
            assert session is not None
            _attach(session, model, lenient=False)
            return model

        return _make(build, lambda: original(cls, config, **kwargs))

    return _from_config


def _make(build: Callable[[], Any], load: Callable[[], Any]) -> Any:
    """A model: ``build`` makes and attaches it, ``load`` makes it as usual."""
    session = _current()
    if session is None or session.busy:
        return load()
    session.busy, session.files = True, None
    try:
        if not _is_published(session):
            with loading(session.store, session.name):
                if not _is_published(session):
                    with _making:
                        made = load()
                    model = made[0] if isinstance(made, tuple) else made
                    _publish(session, model)
                    return made
        session.attaching = True
        with _making:
            return build()
    finally:
        session.busy = session.attaching = False


def _is_published(session: _Session) -> bool:
    try:
        session.store.get(session.name).release()
        return True
    except NotFoundError:
        return False


def _publish(session: _Session, model: torch.nn.Module) -> None:
    # None: a model that was made, and not loaded.
    source = {"files": session.files or []}
    publish(model, session.name, session.store, progress=session.progress, source=source)
    if session.requires_grad is not None:
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.requires_grad_(session.requires_grad)


def _load(original: Any) -> Any:
    """Instead of reading the weights."""

    def _load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *rest: Any, **more: Any
    ) -> Any:
        session = _current()
        if session is None or not session.busy:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        devices = load_config.device_map or {}
        elsewhere = [str(device) for device in devices.values() if str(device) not in ("cpu", "meta")]
        if elsewhere:
            raise UnsupportedError(
                f"device_map asks for {elsewhere[0]}, and shared weights are the host's", field="device_map"
            )
        session.files = _files(checkpoint_files)
        if not session.attaching:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        from transformers.utils.loading_report import LoadStateDictInfo

        empty: Dict[str, Any] = {"error_msgs": [], "conversion_errors": {}}
        info = LoadStateDictInfo(
            **{field.name: empty.get(field.name, set()) for field in dataclasses.fields(LoadStateDictInfo)}
        )
        return info, None

    return _load_pretrained_model


def _finalize(original: Any) -> Any:
    """Instead of moving off the meta device what the files did not have."""

    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        session = _current()
        if session is None or not session.attaching:
            return original(model, load_config, loading_info)
        _attach(session, model, lenient=bool(getattr(load_config, "dtype_plan", None)))
        return loading_info

    return _finalize_model_loading


def _attach(session: _Session, model: torch.nn.Module, *, lenient: bool) -> None:
    """``lenient``: some of the model's parameters stay float32 whatever dtype was asked for."""
    if session.files:
        with session.store.get(session.name) as whole:
            known = _format.read(whole)[0].source.get("files")
        # What publish() put there has none, and is taken as it is.
        if known is not None and known != session.files:
            message = (
                f"{session.name} was published from other files than these, or they have changed since: "
                "remove it from the store, or use another name"
            )
            raise ConflictError(message, field=session.name)
    attach(model, session.name, session.store, requires_grad=session.requires_grad, same_dtype=not lenient)
    left = [name for name, _, tensor in places(model) if tensor.is_meta]
    if left:
        raise InvalidError(f"{left[0]}: it was not published and has no data", field=left[0])
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise UnsupportedError(
                    f"{path}.{name}: a tensor that is neither parameter nor buffer, and so was not published",
                    field=f"{path}.{name}",
                )


def _files(paths: Any) -> Optional[List[List[Any]]]:
    """What tells one state of a checkpoint's files from another."""
    if not paths:
        return None
    found: List[List[Any]] = []
    for path in sorted(map(str, paths)):
        status = os.stat(path)
        found.append([os.path.basename(path), status.st_size, status.st_mtime_ns])
    return found


@contextmanager
def _safe_creation() -> Iterator[None]:
    """transformers' own help for models that compute with numbers while they are made."""
    try:
        from transformers.initialization import meta_device_safe_creation_ops
    except ImportError:
        yield
        return
    with meta_device_safe_creation_ops():
        yield
