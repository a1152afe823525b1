"""Whole modules: published once, attached by whoever wants them."""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Tuple

import torch

from ... import _checks
from ..._native import Store, Tensor
from ...errors import CotensorError, InvalidError
from ..modes import plainly
from ..progress import Progress
from ..store import leased, resolve
from . import write
from .assign import Naming, assign, naming, plan
from .collect import check_complete, gather, places, plain_module
from .follow import Gate, check_compiler
from .manifest import read_manifest

logger = logging.getLogger("cotensor.torch")


@dataclass(frozen=True)
class Attachment:
    """Which published model a module uses."""

    #: Its name in the store.
    name: str
    #: Counts up from 1 with every publication of the name.
    version: int
    #: The version as the store numbers it, for :meth:`cotensor.Store.lease`.
    id: Tuple[int, int]
    #: Bytes of shared memory, the header included.
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
    #: The module's hooks have it: a pass that Ctrl-C ended keeps its frame there, and so the module.
    gate_of_hooks: Optional["weakref.ref[Gate]"] = None

    @property
    def gate(self) -> Optional[Gate]:
        return None if self.gate_of_hooks is None else self.gate_of_hooks()


_lock = threading.RLock()
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
    """Publishes a module's parameters and buffers under ``name``, as one shared tensor: one copy.

    Tied weights are stored once, and so is memory that several tensors show. Strides are kept exactly.
    Published again, a name has a new version, for all its tensors at once; whoever attached the one before keeps it.

    With ``attach`` the module itself uses the shared memory from then on and its own is freed. Its parameters stay the
    same objects, so optimizers go on: what they write is this process's own, page by page, and never seen by readers.
    Without ``attach`` the module stays as it is.

    ``store`` is the daemon's unless it is given. ``keep`` and ``producer`` are as for :meth:`cotensor.Store.put`.
    ``progress`` is a function of bytes done and bytes in all, or True for a tqdm bar; by default a bar appears on a
    terminal when it takes longer than two seconds. ``source`` is a note for whoever attaches.

    Raises :class:`InvalidError` or :class:`UnsupportedError` naming the parameter that has no data, is not on the host,
    or is of a dtype, layout or class that cannot be shared, :class:`UnsupportedError` naming weights that are neither
    parameters nor buffers (quantized modules of torch.ao), and :class:`OverBudgetError`; nothing is published then.
    """
    module = plain_module(module)
    _checks.truth(attach, "attach")
    if source is not None and not isinstance(source, Mapping):
        raise InvalidError(f"source: a dict is expected, not {type(source).__name__}", field="source")
    store = resolve(store)
    if any(type(part).get_extra_state is not torch.nn.Module.get_extra_state for part in module.modules()):
        logger.warning("%s: the module has extra state, which is not published", name)
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    with plainly():
        manifest, sources = gather(places(module), kind, dict(source or {}))
        check_complete(module)
    whole = write.write(store, name, manifest, sources, keep, producer or type(module).__name__, progress)
    del sources
    attachment = _attachment(whole)
    logger.info("published %s version %d, %d bytes", name, attachment.version, attachment.nbytes)
    if attach:
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
    """Makes a module use the parameters and buffers published under ``name``: no copy.

    The module may be on the meta device, ``with cotensor.torch.on_meta(): module = Bert(config)``, and so need no memory
    before. Parameters that have data stay the same objects; those on the meta device are replaced. Tied weights stay
    tied, dtypes are the published ones, ``requires_grad`` too unless it is given; training or evaluation mode does not
    change. Each tensor keeps the memory alive. Writing in place, as optimizers do, is safe and changes this process's
    own pages only.

    ``version`` asks for one exactly, which somebody has to lease still. ``strict`` is as for
    :meth:`torch.nn.Module.load_state_dict`. ``same_dtype`` refuses dtypes that differ from the module's. With
    ``follow`` the module switches to the newest version before a forward pass, never during one; else :func:`refresh`
    does it. :func:`pin` holds one version for several passes, as ``generate`` of transformers does by itself. Of a module
    that follows, ``torch.compile`` compiles what is inside the forward pass; with ``fullgraph=True`` it raises.

    For a module that is part of the published one, or has other names: only published names that start with ``prefix``
    are meant, and the module's names are without it, as a ``BertModel`` is ``bert.`` of a ``BertForMaskedLM``.
    ``key_mapping`` has regular expressions and their replacements, applied in turn to what follows the prefix.

    Raises :class:`NotFoundError`; :class:`InvalidError` naming the parameter that does not fit, and the module is as it
    was then; :class:`CorruptError` when ``name`` is no model.
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
    done = _attach(module, whole, state, follow=follow)
    logger.info("attached %s version %d, %d bytes", name, done.version, done.nbytes)
    return done


def attachment(module: torch.nn.Module) -> Optional[Attachment]:
    """Which published model the module uses, as it was attached or published last; None for none."""
    module = plain_module(module)
    with _lock:
        state = _states.get(module)
    return state.attachment if state else None


def newer_version(module: torch.nn.Module) -> Optional[int]:
    """The newest version of what the module is attached to; None if it has that.

    Raises :class:`InvalidError` for a module that is not attached, :class:`NotFoundError` when the name was removed.
    """
    state = _state(module)
    with state.store.get(state.attachment.name) as newest:
        return None if newest.id == state.attachment.id else int(newest.version)


def refresh(module: torch.nn.Module) -> bool:
    """Switches an attached module to the newest version, all of it or nothing; whether there was one.

    Parameters stay the same objects; what was written into them here is gone. A module that follows is switched between
    forward passes, for which this waits; one that does not must not be in use by other threads meanwhile.

    Raises as :func:`attach` and :func:`newer_version` do; the module is as it was then.
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
        return  # a copy of one
    try:
        _refresh(module, state)
        reason = None
    except CotensorError as error:
        # The version that is there is good, whatever became of the name or of the daemon.
        reason = str(error)
    gate = state.gate
    if gate is None:
        return
    gate.refused = None if reason is None else _newest(state)
    if gate.is_news(reason) and reason is not None:
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
        raise InvalidError("this module is not attached", field="module")
    return state


def _attachment(whole: Tensor) -> Attachment:
    return Attachment(whole.name, whole.version, whole.id, whole.nbytes)


def _attach(module: torch.nn.Module, whole: Tensor, state: _State, *, follow: Optional[bool] = None) -> Attachment:
    """``follow`` as it was, unless it is given."""
    manifest, data = read_manifest(whole)
    planned = plan(
        module, manifest, whole.name, strict=state.strict, same_dtype=state.same_dtype, names=state.names
    )
    shown = write.views(whole, manifest, data)
    # No default device here: it would cost more than all the rest, and nothing is made.
    with _lock, torch.inference_mode(False), torch.no_grad():
        assign(planned, manifest, shown, state.requires_grad)
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
