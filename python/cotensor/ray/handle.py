"""What stands for a tensor in an object of Ray."""

from __future__ import annotations

import uuid
from typing import Any, Dict, Literal, NamedTuple, Optional, Sequence, Tuple

from .._native import Store, Tensor, TensorBuilder
from ..errors import NotFoundError, UnsupportedError

#: As what a handle is opened.
Form = Literal["tensor", "numpy", "torch"]
#: A store's number of a version. No other daemon, also not the next one of the same node, gives it to another tensor.
Id = Tuple[int, int]
#: Names of tensors in handles and of values of calls, which no other node looks for.
OWN_PREFIX = "ray/"
#: Names of copies of tensors in handles. A copy stays in its store without a lease, so that one of a node that has ended can be
#: read.
COPY_PREFIX = f"{OWN_PREFIX}copy/"


def own_name(prefix: str = OWN_PREFIX) -> str:
    """A new name of a tensor in a handle, of a value of a call, or with :data:`COPY_PREFIX` of a copy."""
    return f"{prefix}{uuid.uuid4().hex}"


class Spec(NamedTuple):
    """All of a tensor but its name and bytes, for a copy of it."""

    shape: Tuple[int, ...]
    dtype: str
    kind: str = "other"
    producer: Optional[str] = None
    metadata: Optional[Dict[str, Any]] = None
    #: Name, dtype and shape of each member of a group.
    members: Tuple[Tuple[str, str, Tuple[int, ...]], ...] = ()
    device: str = "cpu"

    @classmethod
    def of(cls, fields: Sequence[Any]) -> Spec:
        """The spec of its fields, which a call has turned into lists."""
        shape, dtype, kind, producer, metadata, members, device = fields
        parts = tuple((name, member_dtype, tuple(member_shape)) for name, member_dtype, member_shape in members)
        return cls(tuple(shape), dtype, kind, producer, metadata, parts, device)

    def check_device(self, name: str) -> None:
        """Raises :class:`UnsupportedError` for a tensor of a device, which is copied to no other node and store."""
        if self.device != "cpu":
            raise UnsupportedError(
                f"{name} is on {self.device}, and tensors of devices stay on their node and in their store: "
                'send numpy.from_dlpack(tensor, device="cpu"), a copy on the host',
                field="device",
            )

    def builder(self, store: Store, name: str, keep: bool) -> TensorBuilder:
        """An unpublished copy, whose memory is made when it is written."""
        options: Dict[str, Any] = {"kind": self.kind, "producer": self.producer, "metadata": self.metadata, "keep": keep}
        return store._empty_copy(name, self.shape, self.dtype, self.members, **options)


def spec_of(tensor: Tensor) -> Spec:
    """The spec of a whole tensor."""
    members = tuple((name, str(member.dtype), member.shape) for name, member in tensor.members().items())
    metadata = tensor.metadata or None
    return Spec(tensor.shape, str(tensor.dtype), tensor.kind, tensor.producer, metadata, members, tensor.device)


def copied(store: Store, tensor: Tensor) -> Tensor:
    """A copy in ``store`` of a tensor of another one, with all that belongs to it. It ends with its last lease.

    Raises :class:`UnsupportedError` for a tensor of a device.
    """
    spec = spec_of(tensor)
    spec.check_device(tensor.name)
    builder = spec.builder(store, own_name(), keep=False)
    builder.write(tensor)
    return builder.publish()


class Handle(NamedTuple):
    """A tensor in an object of Ray. As long as Ray counts a reference to ``token``, the agent of ``node`` keeps the tensor."""

    node: str
    name: str
    id: Id
    spec: Spec
    #: Offset, dtype, shape and strides of a view.
    view: Optional[Tuple[int, str, Tuple[int, ...], Tuple[int, ...]]]
    form: Form
    token: Any


def reduced(tensor: Tensor) -> Tuple[str, str, Id, Any]:
    """The socket of a tensor's daemon, its name and id, and the view.

    Raises :class:`UnsupportedError` for a tensor that no daemon has.
    """
    found: Tuple[Any, ...] = tensor.__reduce__()  # type: ignore[assignment]
    socket, _, name, id_, view = found[1]
    return str(socket), name, (id_[0], id_[1]), view


def is_used(store: Store, tensor: Tensor) -> bool:
    """Whether another process has leased a tensor of this store."""
    return store._leases(tensor.name).get(tensor.id, 0) > 1


def leased(store: Store, id_: Id, name: str) -> Tensor:
    """The tensor of an id. Raises :class:`NotFoundError` for one that was freed, or whose daemon has ended."""
    try:
        return store.lease(id_)
    except NotFoundError as error:
        raise NotFoundError(f"{name}: the tensor was freed, or the daemon that had it has ended", field=name) from error
