"""Hugging Face transformers: models that are constructed on shared weights."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import importlib
import json
import os
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ... import _checks
from ..._native import Store, content_hash
from ...errors import ConflictError, CotensorError, InvalidError, NotFoundError, UnsupportedError
from ..modes import NoInitialization
from ..progress import Progress
from ..store import claimed, resolve
from ..weights.assign import Naming, plan
from ..weights.collect import places
from ..weights.manifest import read_manifest
from ..weights.models import attach, publish


@dataclasses.dataclass
class _Session:
    """One ``with shared_weights(...)``."""

    name: str
    store: Store
    requires_grad: Optional[bool]
    progress: Progress
    #: Under which names models of this block are published.
    shared: List[str] = dataclasses.field(default_factory=list)
    #: Until the block ends. Tasks and threads that begin inside have its context, and keep it.
    open: bool = True


@dataclasses.dataclass
class _Loading:
    """One model that is being made."""

    session: _Session
    #: What the model is loaded from, as far as it is known.
    files: Optional[List[List[Any]]] = None
    #: Where its weights are published, once that is known.
    found: Optional["_Found"] = None
    #: Held while this process loads what others wait for.
    turn: ExitStack = dataclasses.field(default_factory=ExitStack)
    #: The model has its weights: what is loaded into it after that, such as adapters, is loaded as usual.
    done: bool = False


@dataclasses.dataclass
class _Found:
    """Where a model's weights are published, or are to be."""

    name: str
    is_published: bool
    prefix: str = ""


#: Of each task of asyncio, and of each thread that has the block's context.
_sessions: "contextvars.ContextVar[Tuple[_Session, ...]]" = contextvars.ContextVar("sessions", default=())
#: The model that is being made here.
_loading: "contextvars.ContextVar[Optional[_Loading]]" = contextvars.ContextVar("loading", default=None)
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

    The block's first model has ``name``. Further ones that need other weights have names of their own below it. A base class
    takes its part of a head's weights of the same files. The folder of an adapter shares the base model; each process has
    the adapter for itself. Models of diffusers, such as the parts of a pipeline, are loaded as usual and then attached to
    what has the same content, so that their own copies are freed; import diffusers before the block begins.

    Only models are meant that this thread makes, or that tasks and threads with its context make (``asyncio.to_thread``;
    a ``threading.Thread`` has none). If the block made none, as with ``Model(config)`` and other libraries, it warns when
    it ends: make the model, then :func:`publish` or :func:`attach` it.

    ``requires_grad`` is as for :func:`attach`, ``progress`` as for :func:`publish`. To load a checkpoint that has changed,
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
        if not session.shared:
            message = (
                f"shared_weights({name!r}): nothing is shared, because no model was made here by from_pretrained or "
                "from_config of transformers; publish() and attach() share models that are made otherwise"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
    finally:
        session.open = False
        _sessions.set(tuple(other for other in _sessions.get() if other is not session))
        _unpatch()


def _current() -> Optional[_Session]:
    return next((session for session in reversed(_sessions.get()) if session.open), None)


def _patch() -> None:
    global _patched
    with _patch_lock:
        if _patched == 0:
            try:
                from transformers.modeling_utils import PreTrainedModel
            except ImportError:
                raise UnsupportedError("shared_weights is for Hugging Face transformers, which is not installed") from None
            wrappers: Dict[str, Callable[[Any], Any]] = {
                "from_pretrained": _from_pretrained,
                "_from_config": _from_config,
                "_load_pretrained_model": _load,
                "_finalize_model_loading": _finalize,
            }
            missing = [method for method in wrappers if method not in vars(PreTrainedModel)]
            if missing:
                raise UnsupportedError(f"this needs transformers 5: there is no PreTrainedModel.{missing[0]} in this one")
            _wrap(PreTrainedModel, wrappers)
            if "diffusers" in sys.modules:
                _wrap(importlib.import_module("diffusers.models.modeling_utils").ModelMixin, {"from_pretrained": _from_files})
        _patched += 1


def _wrap(owner: Any, wrappers: Dict[str, Callable[[Any], Any]]) -> None:
    for method, wrapper in wrappers.items():
        original = vars(owner)[method]
        _originals.append((owner, method, original))
        wrapped: Any = type(original)(functools.wraps(original.__func__)(wrapper(original.__func__)))
        setattr(owner, method, wrapped)


def _unpatch() -> None:
    global _patched
    with _patch_lock:
        _patched -= 1
        if _patched == 0:
            while _originals:
                owner, method, original = _originals.pop()
                setattr(owner, method, original)


@contextmanager
def _one_model() -> Iterator[Optional[_Loading]]:
    """What makes a model; none where nothing is shared, and inside another model: what its parts make is part of it."""
    session = _current()
    if session is None:
        yield None
        return
    outer = _loading.get()
    loading = None if outer is not None and not outer.done else _Loading(session)
    token = _loading.set(loading)
    try:
        with _making, loading.turn if loading is not None else ExitStack():
            yield loading
    finally:
        _loading.reset(token)


def _from_pretrained(original: Any) -> Any:
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with _one_model() as loading:
            if loading is None:
                return original(cls, *args, **kwargs)
            # transformers makes the model on the meta device, where initializing it is most of the work.
            with NoInitialization():
                return original(cls, *args, **kwargs)

    return from_pretrained


def _from_files(original: Any) -> Any:
    """A model of diffusers: it is loaded as usual, and then attached to what has the same content."""

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with _one_model() as loading:
            model = original(cls, *args, **kwargs)
            if loading is not None:
                _share_loaded(loading, model)
            return model

    return from_pretrained


def _share_loaded(loading: _Loading, model: torch.nn.Module) -> None:
    # Buffers that a state dict leaves out, too: they are published and attached with the rest.
    state = [(name, tensor) for name, _, tensor in places(model)]
    elsewhere = [name for name, tensor in state if tensor.device.type != "cpu"]
    if elsewhere:
        raise UnsupportedError(f"{elsewhere[0]} is on a device, and shared weights are the host's", field=elsewhere[0])
    content = content_hash("cotensor.torch: loaded", *(part for name, tensor in state for part in (name, tensor.detach())))
    name = f"{loading.session.name}/{type(model).__name__}-{content[:12]}"
    loading.found = _turn(loading, _Found(name, False))
    if loading.found.is_published:
        _attach(loading, model, same_dtype=True)
    else:
        _publish(loading, model)


def _from_config(original: Any) -> Any:
    def _from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
        with _one_model() as loading:
            if loading is None:
                return original(cls, config, **kwargs)
            loading.found = _turn(loading, _Found(loading.session.name, False))
            if loading.found.is_published:
                with _on_meta():
                    model = original(cls, config, **kwargs)
                loading.found = _find(loading, model, same_dtype=True)
                if loading.found.is_published:
                    _attach(loading, model, same_dtype=True)
                    return model
            model = original(cls, config, **kwargs)
            _publish(loading, model)
            return model

    return _from_config


def _load(original: Any) -> Any:
    """Instead of reading the weights."""

    def _load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *rest: Any, **more: Any
    ) -> Any:
        loading = _loading.get()
        if loading is None or loading.done:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        devices = load_config.device_map or {}
        elsewhere = [str(device) for device in devices.values() if str(device) not in ("cpu", "meta")]
        if elsewhere:
            raise UnsupportedError(f"device_map asks for {elsewhere[0]}, and shared weights are the host's", field="device_map")
        loading.files = _files(checkpoint_files)
        loading.found = _find(loading, model, same_dtype=_is_same_dtype(load_config))
        if not loading.found.is_published:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        from transformers.utils.loading_report import LoadStateDictInfo

        empty: Dict[str, Any] = {"error_msgs": [], "conversion_errors": {}}
        info = LoadStateDictInfo(**{field.name: empty.get(field.name, set()) for field in dataclasses.fields(LoadStateDictInfo)})
        return info, None

    return _load_pretrained_model


def _finalize(original: Any) -> Any:
    """Instead of moving off the meta device what the files did not have."""

    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        loading = _loading.get()
        if loading is None or loading.done or loading.found is None:
            return original(model, load_config, loading_info)
        if loading.found.is_published:
            _attach(loading, model, same_dtype=_is_same_dtype(load_config))
            return loading_info
        loaded = original(model, load_config, loading_info)
        _publish(loading, model)
        return loaded

    return _finalize_model_loading


def _is_same_dtype(load_config: Any) -> bool:
    """Whether all parameters have the dtype that is asked for; of some models a few stay float32."""
    return not getattr(load_config, "dtype_plan", None)


def _is_published(session: _Session, name: str) -> bool:
    try:
        session.store.get(name).release()
        return True
    except NotFoundError:
        return False


def _find(loading: _Loading, model: torch.nn.Module, *, same_dtype: bool) -> _Found:
    """Where the model's weights are; where they are not, it is this process's turn to publish them."""
    session = loading.session
    found = _turn(loading, _Found(session.name, False))
    if not found.is_published:
        return found
    try:
        return _fitting(loading, model, found, same_dtype)
    except _OtherError as other:
        if not other.of_the_same_files and not session.shared:
            raise other.error from None
    found = _turn(loading, _Found(_own_name(loading, model), False))
    if not found.is_published:
        return found
    try:
        return _fitting(loading, model, found, same_dtype)
    except _OtherError as other:
        raise other.error from None


def _turn(loading: _Loading, found: _Found) -> _Found:
    """Waits for another process that loads what ``found`` is to be; else others wait for this one from now on."""
    session = loading.session
    if not _is_published(session, found.name):
        with ExitStack() as turn:
            turn.enter_context(claimed(session.store, found.name))
            if not _is_published(session, found.name):
                loading.turn.enter_context(turn.pop_all())
                return found
    return dataclasses.replace(found, is_published=True)


class _OtherError(Exception):
    """What is published is no model like this one."""

    def __init__(self, error: CotensorError, of_the_same_files: bool) -> None:
        self.error = error
        self.of_the_same_files = of_the_same_files


def _fitting(loading: _Loading, model: torch.nn.Module, found: _Found, same_dtype: bool) -> _Found:
    """With the prefix that the model's names have in what is published. Raises :class:`_OtherError`."""
    name = found.name
    with loading.session.store.get(name) as whole:
        manifest = read_manifest(whole)[0]
    known = manifest.source.get("files")
    same_files = bool(known) and known == loading.files
    # What publish() put there has none, and is taken as it is.
    if loading.files and known is not None and not same_files:
        message = (
            f"{name} was published from other files than these, or they have changed since: "
            "remove it from the store, or use another name"
        )
        raise _OtherError(ConflictError(message, field=name), False)
    prefixes = [""]
    base = getattr(model, "base_model_prefix", "")
    if base and not hasattr(model, base):
        prefixes.append(f"{base}.")
    first: Optional[CotensorError] = None
    for prefix in prefixes:
        try:
            # A part of what is published has all that it needs there; what it does not need is no error.
            planned = plan(model, manifest, name, strict=True, same_dtype=same_dtype, names=Naming(prefix))
        except CotensorError as error:
            first = first or error
            continue
        if planned.targets:
            return dataclasses.replace(found, prefix=prefix)
    raise _OtherError(first or InvalidError(f"{name} has none of the model's tensors", field=name), same_files)


def _own_name(loading: _Loading, model: torch.nn.Module) -> str:
    """A name for a model that needs other weights than its block's first: the same in every process."""
    dtypes = sorted({str(tensor.dtype) for _, _, tensor in places(model)})
    made_of = json.dumps([loading.files, dtypes])
    return f"{loading.session.name}/{type(model).__name__}-{content_hash('cotensor.torch: files', made_of)[:12]}"


def _publish(loading: _Loading, model: torch.nn.Module) -> None:
    session, found = loading.session, loading.found
    assert found is not None
    # None: a model that was made, and not loaded.
    source = {"files": loading.files or []}
    publish(model, found.name, session.store, progress=session.progress, source=source)
    if session.requires_grad is not None:
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.requires_grad_(session.requires_grad)
    _done(loading)


def _attach(loading: _Loading, model: torch.nn.Module, *, same_dtype: bool) -> None:
    session, found = loading.session, loading.found
    assert found is not None
    attach(
        model,
        found.name,
        session.store,
        requires_grad=session.requires_grad,
        same_dtype=same_dtype,
        prefix=found.prefix,
    )
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
    _done(loading)


def _done(loading: _Loading) -> None:
    assert loading.found is not None
    loading.session.shared.append(loading.found.name)
    loading.done = True
    loading.turn.close()


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
def _on_meta() -> Iterator[None]:
    """transformers' own help for models that compute with numbers while they are made, and for skipping what is replaced."""
    with ExitStack() as contexts:
        contexts.enter_context(torch.device("meta"))
        for name in ("meta_device_safe_creation_ops", "no_init_weights"):
            try:
                helper = getattr(importlib.import_module("transformers.initialization"), name)
            except (ImportError, AttributeError):
                continue
            contexts.enter_context(helper())
        yield
