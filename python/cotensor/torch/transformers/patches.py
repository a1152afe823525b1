"""The methods of transformers and diffusers that a block replaces."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ..._forks import renewed
from ...errors import UnsupportedError
from ..modes import NoInitialization
from .origin import set_generator_state
from .publication import attach_model, find_weights, publish_model, share_loaded, take_turn
from .session import Weights, current_loading, one_model

_patch_lock = renewed(sys.modules[__name__], "_patch_lock", threading.Lock)
_patched = 0
_originals: List[Tuple[Any, str, Any]] = []


def patch() -> None:
    """Replaces the methods at the start of the first open block."""
    global _patched
    with _patch_lock:
        if _patched == 0:
            try:
                from transformers.modeling_utils import PreTrainedModel
            except ImportError:
                raise UnsupportedError("shared_weights needs Hugging Face transformers: pip install transformers") from None
            wrappers: Dict[str, Callable[[Any], Any]] = {
                "from_pretrained": _from_pretrained,
                "_from_config": _from_config,
                "_load_pretrained_model": _load,
                "_finalize_model_loading": _finalize,
            }
            missing = [method for method in wrappers if method not in vars(PreTrainedModel)]
            if missing:
                raise UnsupportedError(f"shared_weights needs transformers 5: this version has no PreTrainedModel.{missing[0]}")
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


def unpatch() -> None:
    """Restores the methods at the end of the last open block."""
    global _patched
    with _patch_lock:
        _patched -= 1
        if _patched == 0:
            while _originals:
                owner, method, original = _originals.pop()
                setattr(owner, method, original)


def _from_pretrained(original: Any) -> Any:
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with one_model() as loading:
            if loading is None:
                return original(cls, *args, **kwargs)
            if kwargs.get("key_mapping"):
                loading.origin.key_mapping = json.dumps(list(kwargs["key_mapping"].items()))
            # transformers makes the model on the meta device, where initialization takes most of the time.
            with NoInitialization():
                return original(cls, *args, **kwargs)

    return from_pretrained


def _from_files(original: Any) -> Any:
    """For diffusers: loads the model as usual, and then shares its weights by content."""

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with one_model() as loading:
            model = original(cls, *args, **kwargs)
            if loading is not None:
                share_loaded(loading, model)
            return model

    return from_pretrained


def _from_config(original: Any) -> Any:
    def _from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
        with one_model() as loading:
            if loading is None:
                return original(cls, config, **kwargs)
            loading.device = default_device()
            loading.origin = loading.origin.on(loading.device).of_config(cls, config, kwargs)
            loading.weights = take_turn(loading, Weights(loading.session.name, False))
            if loading.weights.is_published:
                with _on_meta():
                    model = original(cls, config, **kwargs)
                set_generator_state(loading.origin.generator, loading.device)
                loading.origin = loading.origin.of_parts(model)
                loading.weights = find_weights(loading, model, same_dtype=True)
                if loading.weights.is_published:
                    attach_model(loading, model, same_dtype=True)
                    return model
            model = original(cls, config, **kwargs)
            loading.origin = loading.origin.of_parts(model)
            publish_model(loading, model, is_random=True)
            return model

    return _from_config


def _load(original: Any) -> Any:
    """Skips reading published weights."""

    def _load_pretrained_model(
        model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, *rest: Any, **more: Any
    ) -> Any:
        loading = current_loading()
        if loading is None:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        loading.device = wanted_device(load_config.device_map)
        loading.computes_buffers = True
        loading.origin = loading.origin.on(loading.device)
        if checkpoint_files:
            loading.origin = loading.origin.of_files(checkpoint_files, model)
        loading.weights = find_weights(loading, model, same_dtype=_is_same_dtype(load_config))
        if not loading.weights.is_published:
            return original(model, state_dict, checkpoint_files, load_config, *rest, **more)
        from transformers.utils.loading_report import LoadStateDictInfo

        empty: Dict[str, Any] = {"error_msgs": [], "conversion_errors": {}}
        info = LoadStateDictInfo(**{field.name: empty.get(field.name, set()) for field in dataclasses.fields(LoadStateDictInfo)})
        return info, None

    return _load_pretrained_model


def _finalize(original: Any) -> Any:
    """Attaches published weights instead of initializing missing ones."""

    def _finalize_model_loading(model: Any, load_config: Any, loading_info: Any) -> Any:
        loading = current_loading()
        if loading is None or loading.weights is None:
            return original(model, load_config, loading_info)
        if loading.weights.is_published:
            attach_model(loading, model, same_dtype=_is_same_dtype(load_config))
            return loading_info
        loaded = original(model, load_config, loading_info)
        publish_model(loading, model, is_random=bool(loaded.missing_keys or loaded.mismatched_keys))
        return loaded

    return _finalize_model_loading


def wanted_device(device_map: Any) -> torch.device:
    """The one device of a `device_map`. Raises :class:`UnsupportedError` for several, and for one without shared memory."""
    named = {_indexed(device) for device in (device_map or {}).values()} - {"meta"} or {"cpu"}
    if len(named) > 1:
        first, second = sorted(named)[:2]
        raise UnsupportedError(f"device_map has {first} and {second}, and shared weights are on one device", field="device_map")
    (device,) = named
    return _shared(device, "device_map has", "device_map")


def default_device() -> torch.device:
    """The device on which PyTorch makes tensors, and so `from_config` a model: that of `torch.device` as a context or of
    `torch.set_default_device`. For the meta device, the host. Raises :class:`UnsupportedError` for one without shared memory."""
    device = str(torch.get_default_device())
    return _shared("cpu" if device == "meta" else device, "the default device is", "device")


def _shared(device: str, found: str, field: str) -> torch.device:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        message = f"{found} {device}, and shared weights are on the host or on a CUDA device"
        raise UnsupportedError(message, field=field)
    # The host has one number.
    return torch.device("cpu" if kind == "cpu" else device)


def _indexed(device: Any) -> str:
    """The name of a value of a `device_map`. As for PyTorch, CUDA without a number is the current device."""
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    return f"cuda:{torch.cuda.current_device()}" if name == "cuda" else name


def _is_same_dtype(load_config: Any) -> bool:
    """Whether all parameters get the requested dtype. Some models keep a few in float32."""
    return not getattr(load_config, "dtype_plan", None)


@contextmanager
def _on_meta() -> Iterator[None]:
    """Makes models on the meta device with transformers' own helpers for computed constants and skipped initialization."""
    with ExitStack() as contexts:
        contexts.enter_context(torch.device("meta"))
        for name in ("meta_device_safe_creation_ops", "no_init_weights"):
            try:
                helper = getattr(importlib.import_module("transformers.initialization"), name)
            except (ImportError, AttributeError):
                continue
            contexts.enter_context(helper())
        yield
