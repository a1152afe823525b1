"""Makes models of Hugging Face transformers on shared weights."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Iterator, Optional

from ... import _checks
from ..._native import Store
from ...errors import InvalidError
from ..progress import Progress
from ..store import resolve
from .patches import patch, unpatch
from .session import Session, close_session, open_session


@contextmanager
def shared_weights(
    name: str,
    store: Optional[Store] = None,
    *,
    requires_grad: Optional[bool] = None,
    progress: Progress = None,
    force: bool = False,
) -> Iterator[None]:
    """Inside, a model that Hugging Face transformers makes by ``from_pretrained`` or ``from_config`` uses the weights published
    under ``name``. It works for unmodified models and all ``Auto`` classes::

        with cotensor.torch.shared_weights("bert"):
            model = AutoModel.from_pretrained(folder)

    With published weights, the model is made on the meta device and attached, without own memory for weights. Otherwise it is
    loaded as usual, published and attached, which frees its own copy. Of several processes that start together, one does so while
    the others wait.

    The block's first model has ``name``. Further models with other weights get names below it. A base class uses its part of the
    weights of a head from the same files. For the folder of an adapter, the base model is shared, and the adapter is private.
    Models of diffusers, such as the parts of a pipeline, are loaded as usual and then attached by content, which frees their own
    copies; import diffusers before the block.

    The block applies to models that this thread makes, and to tasks and threads with its context (``asyncio.to_thread``, but not
    ``threading.Thread``). If it shares no model, as with ``Model(config)`` and other libraries, it warns at its end: use
    :func:`publish` or :func:`attach` for such models.

    With a ``device_map`` of one CUDA device, or with ``from_config`` under such a default device, the weights are published and
    attached there (not tried on a GPU yet).

    Published weights keep their origin: the checkpoint's files, or the class, the configuration and the state of torch's random
    number generator; that state, too, if the files lack weights. A model of another origin would have other values, and is
    refused. ``force`` takes published weights of any origin that fit, such as those of :func:`publish`, which may be trained or
    quantized. After a model with random weights, the generator has the state that it would have without the block.

    ``requires_grad`` is as for :func:`attach`, ``progress`` as for :func:`publish`.

    Raises :class:`ConflictError` that names both origins; :class:`InvalidError` with the name of a parameter that does not fit;
    :class:`UnsupportedError` without transformers 5 or newer, for a ``device_map`` with several devices, and for a device that is
    neither the host nor CUDA.
    """
    if not isinstance(name, str):
        raise InvalidError(f"name: pass a string, not {type(name).__name__}", field="name")
    if requires_grad is not None:
        _checks.truth(requires_grad, "requires_grad")
    _checks.truth(force, "force")
    session = Session(name, resolve(store), requires_grad, progress, force)
    patch()
    open_session(session)
    try:
        yield
        if not session.shared:
            message = (
                f"shared_weights({name!r}): nothing is shared, because the block made no model by from_pretrained or "
                "from_config of transformers: use publish() and attach() for other models"
            )
            warnings.warn(message, UserWarning, stacklevel=3)
    finally:
        close_session(session)
        unpatch()


