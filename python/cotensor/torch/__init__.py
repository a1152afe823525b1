"""PyTorch models in shared memory: published once, attached in milliseconds by any process of the machine.

::

    import cotensor.torch

    cotensor.torch.publish(model, "bert")               # one process: one copy; the daemon keeps it

    with cotensor.torch.on_meta():                      # another process: the structure, without memory
        model = Bert(config)
    cotensor.torch.attach(model, "bert")                # the weights, without a copy

    with cotensor.torch.shared_weights("bert"):         # Hugging Face: the first process loads, the others attach
        model = AutoModel.from_pretrained(folder)

A name has versions. :func:`publish` makes a new version of all tensors at once. Attached modules keep their version until
:func:`refresh`. Parameters can be trained: a write makes a private copy of the page that it touches.

:func:`share` computes outputs of modules once for all callers with the same module and input.

State dicts: :func:`publish_state_dict`, :func:`publish_file` (safetensors), :func:`state_dict`.
"""

from __future__ import annotations

from .modes import on_meta
from .outputs.share import Shared, share, unshare
from .transformers.shared_weights import shared_weights
from .weights.follow import pin
from .weights.models import Attachment, attach, attachment, newer_version, publish, refresh
from .weights.state_dict import publish_file, publish_state_dict, state_dict

__all__ = [
    "Attachment",
    "Shared",
    "attach",
    "attachment",
    "newer_version",
    "on_meta",
    "pin",
    "publish",
    "publish_file",
    "publish_state_dict",
    "refresh",
    "share",
    "shared_weights",
    "state_dict",
    "unshare",
]
