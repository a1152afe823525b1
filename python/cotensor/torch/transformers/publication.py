"""Finds, publishes and attaches the weights of one model of a block."""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from typing import Any, Dict, Iterator, Optional

import torch

from ... import _elsewhere
from ..._native import content_hash
from ...errors import ConflictError, CotensorError, InvalidError, NotFoundError, UnsupportedError
from ..modes import default_modes
from ..store import claimed
from ..weights.assign import Naming, plan
from ..weights.collect import named_tensors, places
from ..weights.manifest import NON_PERSISTENT, read_manifest
from ..weights.models import attach_names, publish
from ..weights.place import place_of_model
from .origin import set_generator_state, state_after
from .session import Loading, Session, Weights


def is_published(session: Session, name: str) -> bool:
    """Whether weights are published under ``name``."""
    try:
        _elsewhere.get(session.store, name).release()
        return True
    except NotFoundError:
        return False


def find_weights(loading: Loading, model: torch.nn.Module, *, same_dtype: bool) -> Weights:
    """Finds the model's published weights. If there are none, this process has the turn to publish them."""
    session = loading.session
    for name in names_of(loading, model):
        weights = take_turn(loading, Weights(name, False))
        if not weights.is_published:
            return weights
        try:
            return fit(loading, model, weights, same_dtype)
        except OtherModelError as error:
            refused = error
        # A further model of the block has a name of its own, and so has one of the same files with other parameters or dtypes.
        if name == session.name and not session.shared and (refused.is_of_other_origin or not loading.origin.files):
            break
    raise refused.error from None


def names_of(loading: Loading, model: torch.nn.Module) -> Iterator[str]:
    """The names that a model's weights can have: that of the block, that of its files, and that of its random weights beside."""
    yield loading.session.name
    for with_generator in (False, True):
        yield own_name(loading, model, with_generator)


def take_turn(loading: Loading, weights: Weights) -> Weights:
    """Waits while another process loads these weights. If they are not published then, makes other processes wait for this
    one."""
    session = loading.session
    if not is_published(session, weights.name):
        with ExitStack() as turn:
            turn.enter_context(claimed(session.store, weights.name))
            if not is_published(session, weights.name):
                loading.turn.enter_context(turn.pop_all())
                return weights
    return dataclasses.replace(weights, is_published=True)


class OtherModelError(Exception):
    """The published weights belong to another model: one of another origin, or with other parameters."""

    def __init__(self, error: CotensorError, is_of_other_origin: bool) -> None:
        self.error = error
        self.is_of_other_origin = is_of_other_origin


def fit(loading: Loading, model: torch.nn.Module, weights: Weights, same_dtype: bool) -> Weights:
    """The weights with the model's names for them. Raises :class:`OtherModelError` if the model does not fit."""
    name = weights.name
    with loading.session.store.get(name) as whole:
        manifest, place = read_manifest(whole)[0], place_of_model(whole)
    if place.device != loading.device:
        message = (
            f"{name} is published on {place.name} ({place.device} in this process), and this model is made for {loading.device}: "
            "use another name, or the device of the published one (device_map for from_pretrained, torch.device for from_config)"
        )
        raise OtherModelError(ConflictError(message, field=name), True)
    other = None if loading.session.force else loading.origin.other_than(manifest.source)
    if other is not None:
        message = (
            f"{name} has weights of {other}, and this model is made of {loading.origin.described}: use another "
            "name, remove the name from the store, or take these weights with shared_weights(..., force=True)"
        )
        raise OtherModelError(ConflictError(message, field=name), True)
    generator = None if loading.session.force else state_after(manifest.source)
    prefixes = [""]
    base = getattr(model, "base_model_prefix", "")
    if base and not hasattr(model, base):
        prefixes.append(f"{base}.")
    first: Optional[CotensorError] = None
    for prefix in prefixes:
        names = Naming(prefix, computes_buffers=loading.computes_buffers)
        try:
            # A part of the published model needs only some of its tensors.
            planned = plan(model, manifest, name, strict=True, same_dtype=same_dtype, names=names, place=place)
        except CotensorError as error:
            first = first or error
            continue
        if planned.targets:
            return dataclasses.replace(weights, names=names, generator=generator)
    raise OtherModelError(first or InvalidError(f"{name} has no tensor of this model", field=name), False)


def own_name(loading: Loading, model: torch.nn.Module, with_generator: bool) -> str:
    """The name of a model whose weights differ from those of the block's first model: the same in every process."""
    dtypes = sorted({str(tensor.dtype) for _, _, tensor in places(model)})
    made_of = json.dumps([loading.origin.own_key(with_generator), dtypes])
    return f"{loading.session.name}/{type(model).__name__}-{content_hash('cotensor.torch: origin', made_of)[:12]}"


def publish_model(loading: Loading, model: torch.nn.Module, *, is_random: bool) -> None:
    """Publishes and attaches a model that was made without published weights. ``is_random`` is as for :meth:`Origin.note`."""
    session, weights = loading.session, loading.weights
    assert weights is not None
    publish(model, weights.name, session.store, progress=session.progress, source=loading.origin.note(is_random))
    if session.requires_grad is not None:
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.requires_grad_(session.requires_grad)
    mark_done(loading)


def attach_model(loading: Loading, model: torch.nn.Module, *, same_dtype: bool) -> None:
    """Attaches the published weights. Raises for tensors that they do not include."""
    session, weights = loading.session, loading.weights
    assert weights is not None
    options: Dict[str, Any] = {"requires_grad": session.requires_grad, "same_dtype": same_dtype}
    attach_names(model, weights.name, session.store, weights.names, **options)
    if weights.names.computes_buffers:
        compute_buffers(model, loading.device)
    left = [name for name, _, tensor in places(model) if tensor.is_meta]
    if left:
        raise InvalidError(f"{left[0]}: on the meta device and not published", field=left[0])
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise UnsupportedError(
                    f"{path}.{name}: a tensor attribute that is neither parameter nor buffer, and so is not published",
                    field=f"{path}.{name}",
                )
    if weights.generator is not None:
        set_generator_state(weights.generator, loading.device)
    mark_done(loading)


def compute_buffers(model: Any, device: torch.device) -> None:
    """Computes the non-persistent buffers of a model on the meta device, as transformers does after it has loaded the weights.
    They get memory of ``device``.

    They depend on the configuration, which can differ from that of the published model of the same files.
    """
    with default_modes():
        for _, kind, tensor, owner, leaf in named_tensors(model):
            if kind != NON_PERSISTENT:
                tensor._is_hf_initialized = True  # type: ignore[attr-defined]
            elif tensor.is_meta:
                setattr(owner, leaf, torch.empty_like(tensor, device=device))
        model.initialize_weights()


def mark_done(loading: Loading) -> None:
    """Records the name and ends the turn."""
    assert loading.weights is not None
    loading.session.shared.append(loading.weights.name)
    loading.done = True
    loading.turn.close()


def share_loaded(loading: Loading, model: torch.nn.Module) -> None:
    """Publishes or attaches a loaded model by the content of its weights."""
    # Non-persistent buffers included.
    state = [(name, tensor) for name, _, tensor in places(model)]
    elsewhere = [name for name, tensor in state if tensor.device.type != "cpu"]
    if elsewhere:
        raise UnsupportedError(f"{elsewhere[0]} is on a device, and shared weights are on the host", field=elsewhere[0])
    content = content_hash("cotensor.torch: loaded", *(part for name, tensor in state for part in (name, tensor.detach())))
    name = f"{loading.session.name}/{type(model).__name__}-{content[:12]}"
    loading.weights = take_turn(loading, Weights(name, False))
    if loading.weights.is_published:
        attach_model(loading, model, same_dtype=True)
    else:
        publish_model(loading, model, is_random=False)
