"""Modules in shared memory: publish, attach and refresh."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Tuple

import torch

from ... import _checks
from ..._forks import renewed
from ..._native import Store, Tensor
from ...errors import CotensorError, InvalidError
from ..modes import default_modes
from ..progress import Progress
from ..store import leased, resolve
from . import write
from .assign import Naming, assign, naming, plan, written_storages
from .collect import check_complete, gather, places, plain_module
from .follow import Gate, check_compiler
from .manifest import read_manifest
from .place import place_of_model

logger = logging.getLogger("cotensor.torch")


@dataclass(frozen=True)
class Attachment:
    """The published model that a module uses."""

    #: Its name in the store.
    name: str
    #: 1 for the first publication of the name, and one more for each further one.
    version: int
    #: The store's number of the version, for :meth:`cotensor.Store.lease`.
    id: Tuple[int, int]
    #: Size in shared memory in bytes, header included.
    nbytes: int
    #: The module's names that were not published; only with ``strict=False``.
    missing_keys: Tuple[str, ...] = ()
    #: Published names that the module does not have; only with ``strict=False``.
    unexpected_keys: Tuple[str, ...] = ()


@dataclass
class _State:
    attachment: Attachment
    store: Store
    strict: bool
    requires_grad: Optional[bool]
    same_dtype: bool
    names: Naming = Naming()
    #: Weak: the gate, which the module's hooks own, can hold the frame of an interrupted pass, and so the module.
    gate_of_hooks: Optional["weakref.ref[Gate]"] = None

    @property
    def gate(self) -> Optional[Gate]:
        return None if self.gate_of_hooks is None else self.gate_of_hooks()


_lock = renewed(sys.modules[__name__], "_lock", threading.RLock)
_states: "weakref.WeakKeyDictionary[torch.nn.Module, _State]" = weakref.WeakKeyDictionary()


def publish(
    module: torch.nn.Module,
    name: str,
    store: Optional[Store] = None,
    *,
    attach: bool = True,
    keep: bool = True,
    producer: Optional[str] = None,
    progress: Progress = None,
    source: Optional[Mapping[str, Any]] = None,
) -> Attachment:
    """Publishes a module's parameters and buffers under ``name`` as one shared tensor, with one copy.

    Tied weights and overlapping tensors are stored once. Strides stay exact. Publishing again makes a new version of all tensors
    at once; attached modules keep their version.

    With ``attach``, the module then uses the shared memory, and its own memory is freed. Its parameters stay the same objects, so
    optimizers continue to work. Their writes make private copies of pages, which other processes do not see. Without ``attach``
    the module does not change.

    A module on a CUDA device is published on that device, for the programs that use it there. Its published memory cannot be
    written: the parameters of an attached module do not require gradients there, and a kernel that writes them ends with an
    illegal address. Buffers of parts in training mode, such as running statistics, get private copies there. ``eval()`` before
    shares them; no forward pass in training mode may follow then.

    ``store`` is the daemon's by default. ``keep`` and ``producer`` are as for :meth:`cotensor.Store.put`. ``progress`` is a
    function of the bytes done and the total bytes, or True for a tqdm bar; by default a bar appears on a terminal after two
    seconds. ``source`` is a JSON note that the manifest keeps.

    Raises :class:`InvalidError` or :class:`UnsupportedError` with the name of a parameter that has no data, is on another device
    than the others, or has an unsupported device, dtype, layout or class; :class:`UnsupportedError` for weights that are neither
    parameters nor buffers (quantized modules of torch.ao); and :class:`OverBudgetError`. Nothing is published then.
    """
    module = plain_module(module)
    _checks.truth(attach, "attach")
    if source is not None and not isinstance(source, Mapping):
        raise InvalidError(f"source: pass a dict, not {type(source).__name__}", field="source")
    store = resolve(store)
    if any(type(part).get_extra_state is not torch.nn.Module.get_extra_state for part in module.modules()):
        logger.warning("%s: the module has extra state, which publish() omits", name)
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    with default_modes():
        gathered = gather(places(module), kind, dict(source or {}))
        check_complete(module)
    whole = write.write(store, name, gathered, keep, producer or type(module).__name__, progress)
    trains = not gathered.place.is_host and any(entry.requires_grad for entry in gathered.manifest.tensors)
    del gathered
    attachment = _attachment(whole)
    logger.info("published %s version %d, %d bytes", name, attachment.version, attachment.nbytes)
    if attach:
        if trains:
            message = "%s: published memory of a GPU cannot be written, so the parameters no longer require gradients"
            logger.warning(message + ": pass attach=False to train the module", name)
        _attach(module, whole, _State(attachment, store, True, None, False))
    return attachment


def attach(
    module: torch.nn.Module,
    name: str,
    store: Optional[Store] = None,
    *,
    version: Optional[int] = None,
    strict: bool = True,
    requires_grad: Optional[bool] = None,
    same_dtype: bool = False,
    follow: bool = False,
    prefix: str = "",
    key_mapping: Optional[Mapping[str, str]] = None,
) -> Attachment:
    """Makes a module use the parameters and buffers published under ``name``, without a copy.

    The module may be on the meta device, where it has no memory: ``with cotensor.torch.on_meta(): module = Bert(config)``.
    Parameters with data stay the same objects; those on the meta device are replaced. Tied weights stay tied. Dtypes are the
    published ones, and so is ``requires_grad`` by default. The training mode does not change. Each tensor keeps the memory alive.
    A write in place, as by an optimizer, makes private copies of pages in this process.

    A model that was published on a CUDA device is attached there: the module is on the meta device or on that one. Its memory
    cannot be written, so ``requires_grad`` is False by default, and buffers of parts in training mode are as for :func:`publish`.

    ``version`` selects a version, which another lease has to keep. ``strict`` is as for
    :meth:`torch.nn.Module.load_state_dict`. ``same_dtype`` refuses dtypes that differ from the module's. With ``follow``, the
    module switches to the newest version before a forward pass, never during one. Otherwise :func:`refresh` switches. :func:`pin`
    holds one version for several passes; ``generate`` of transformers does so by itself. ``torch.compile`` of a module that
    follows compiles the inside of the forward pass; ``fullgraph=True`` raises.

    ``prefix`` is for a module that is a part of the published one: only published names with this prefix apply, and the module's
    names are without it. For example, a ``BertModel`` is ``bert.`` of a ``BertForMaskedLM``. ``key_mapping`` has regular
    expressions and their replacements, applied in turn to the name after the prefix.

    Raises :class:`NotFoundError`; :class:`InvalidError` with the name of a parameter that does not fit, and the module stays
    unchanged; :class:`CorruptError` if ``name`` is not a model.
    """
    module = plain_module(module)
    for field, value in (("strict", strict), ("same_dtype", same_dtype), ("follow", follow)):
        _checks.truth(value, field)
    if requires_grad is not None:
        _checks.truth(requires_grad, "requires_grad")
    names = naming(prefix, key_mapping)
    if follow:
        check_compiler()
    store = resolve(store)
    whole = leased(store, name, version)
    state = _State(_attachment(whole), store, strict, requires_grad, same_dtype, names)
    return _attach_first(module, whole, state, follow)


def attach_names(
    module: torch.nn.Module, name: str, store: Store, names: Naming, *, requires_grad: Optional[bool], same_dtype: bool
) -> Attachment:
    """As :func:`attach`, for names that were planned before."""
    whole = leased(store, name, None)
    state = _State(_attachment(whole), store, True, requires_grad, same_dtype, names)
    return _attach_first(module, whole, state, False)


def _attach_first(module: torch.nn.Module, whole: Tensor, state: _State, follow: bool) -> Attachment:
    done = _attach(module, whole, state, follow=follow)
    logger.info("attached %s version %d, %d bytes", done.name, done.version, done.nbytes)
    return done


def attachment(module: torch.nn.Module) -> Optional[Attachment]:
    """The published model that the module uses, from the last publish or attach; ``None`` without one."""
    module = plain_module(module)
    with _lock:
        state = _states.get(module)
    return state.attachment if state else None


def newer_version(module: torch.nn.Module) -> Optional[int]:
    """The newest version of the module's name; ``None`` if the module has it.

    Raises :class:`InvalidError` for a module that is not attached, :class:`NotFoundError` if the name was removed.
    """
    state = _state(module)
    with state.store.get(state.attachment.name) as newest:
        return None if newest.id == state.attachment.id else int(newest.version)


def refresh(module: torch.nn.Module) -> bool:
    """Switches an attached module to the newest version, as a whole. Returns whether there was a newer one.

    Parameters stay the same objects and lose local writes. For a module that follows, this waits for the end of forward passes.
    Other threads must not use a module that does not follow meanwhile.

    Raises as :func:`attach` and :func:`newer_version` do; the module stays unchanged then.
    """
    module = plain_module(module)
    state = _state(module)
    gate = state.gate
    if gate is None:
        return _refresh(module, state)
    with gate.exclusive():
        return _refresh(module, state)


def _refresh(module: torch.nn.Module, state: _State) -> bool:
    whole = state.store.get(state.attachment.name)
    if whole.id == state.attachment.id:
        return False
    _attach(module, whole, state)
    logger.info("switched to %s version %d", whole.name, whole.version)
    return True


def _refresh_quietly(module: torch.nn.Module) -> None:
    """Before a forward pass of a module that follows."""
    with _lock:
        state = _states.get(module)
    if state is None:
        return  # a copy of an attached module
    try:
        _refresh(module, state)
        reason = None
    except CotensorError as error:
        # The current version stays valid without the name and without the daemon.
        reason = str(error)
    gate = state.gate
    if gate is None:
        return
    gate.refused = None if reason is None else _newest(state)
    if gate.is_new_reason(reason) and reason is not None:
        logger.warning("%s: version %d stays: %s", state.attachment.name, state.attachment.version, reason)


def _newest(state: _State) -> Optional[Tuple[int, int]]:
    try:
        with state.store.get(state.attachment.name) as newest:
            return newest.id
    except CotensorError:
        return None


def _is_newer(module: torch.nn.Module) -> bool:
    with _lock:
        state = _states.get(module)
    gate = state.gate if state else None
    if state is None or gate is None:
        return False
    return _newest(state) not in (None, state.attachment.id, gate.refused)


def _state(module: torch.nn.Module) -> _State:
    module = plain_module(module)
    with _lock:
        state = _states.get(module)
    if state is None:
        raise InvalidError("this module is not attached: call attach() first", field="module")
    return state


def _attachment(whole: Tensor) -> Attachment:
    return Attachment(whole.name, whole.version, whole.id, whole.nbytes)


def _attach(module: torch.nn.Module, whole: Tensor, state: _State, *, follow: Optional[bool] = None) -> Attachment:
    """Attaches ``whole``. Without ``follow``, the module follows as before."""
    manifest, data = read_manifest(whole)
    place = place_of_model(whole)
    planned = plan(
        module, manifest, whole.name, strict=state.strict, same_dtype=state.same_dtype, names=state.names, place=place
    )
    shown = write.views(whole, manifest, data, written_storages(planned, manifest))
    requires_grad = state.requires_grad
    if requires_grad is None and not place.is_host:
        requires_grad = False
    # Without `default_modes`: setting the default device costs more than the rest, and no tensor is made.
    with _lock, torch.inference_mode(False), torch.no_grad():
        assign(planned, manifest, shown, requires_grad)
        new = _attachment(whole)
        missing, unexpected = tuple(planned.missing), tuple(planned.unexpected)
        new = Attachment(new.name, new.version, new.id, new.nbytes, missing, unexpected)
        before = _states.get(module)
        gate = before.gate if before else None
        if follow is None:
            follow = before is not None and gate is not None and before.attachment.name == new.name
        if follow and gate is None:
            gate = Gate(_refresh_quietly, _is_newer)
            gate.install(module)
        elif gate is not None and not follow:
            gate.remove(module)
            gate = None
        weak = None if gate is None else weakref.ref(gate)
        _states[module] = replace(state, attachment=new, gate_of_hooks=weak)
    return new
