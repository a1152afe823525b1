"""Ray's direct transport by the name ``COTENSOR``, for programs that use it: ``@ray.method(tensor_transport="COTENSOR")``.

Its objects are ordinary ones with handles, since references in what Ray's transports send beside the object are not counted.
Ray has nothing to send, and this module says so: consumers need not be actors with that transport, and wait for nothing.
"""

from __future__ import annotations

from typing import Any, List, Optional

import ray
from ray._private.worker import Worker
from ray.experimental import rdt

from ..errors import UnsupportedError
from .serialization import TRANSPORT


class NoType:
    """What Ray takes out of objects for this transport: nothing, as no object is of this type."""


class Transport(rdt.TensorTransportManager):  # type: ignore[misc]
    """Sends nothing: see the module."""

    def tensor_transport_backend(self) -> str:
        """The name."""
        return TRANSPORT

    @staticmethod
    def is_one_sided() -> bool:
        """A consumer opens a handle without the producer."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """No process waits for another one, so that none is killed."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """All actors have it."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: List[Any]) -> Any:
        """No tensors are outside of the object."""
        return rdt.TensorTransportMetadata(tensor_meta=[], tensor_device=None)

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Optional[str] = None) -> Any:
        """Nothing is needed."""
        return rdt.CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: Optional[List[Any]] = None,
    ) -> List[Any]:
        """No tensors are outside of the object."""
        return []

    def send_multiple_tensors(self, tensors: List[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Ray does not call it for a one-sided transport."""
        raise UnsupportedError(f"{TRANSPORT} has no sender")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: List[Any]) -> None:
        """The end of a token releases its tensor: Ray does not call this when the producer was killed."""

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """Nothing is on its way."""


def register() -> None:
    """Registers the transport in this process, once."""
    if TRANSPORT in rdt.util.transport_manager_info:
        return
    managed, outside = rdt.RDTManager.is_managed_object, Worker._get_rdt_ids
    rdt.register_tensor_transport(TRANSPORT, ["cpu"], Transport, NoType)

    def is_managed_object(self: Any, obj_id: str) -> bool:
        # The caller's side: whether consumers are sent tensors, and whether a reference can be passed on.
        return bool(managed(self, obj_id)) and self.get_rdt_metadata(obj_id).tensor_transport_backend != TRANSPORT

    def get_rdt_ids(serialized_objects: Any, object_refs: Any) -> Any:
        # The consumer's side: the objects for whose tensors it waits.
        mine = [transport == TRANSPORT for _, _, transport in serialized_objects]
        if not any(mine):
            return outside(serialized_objects, object_refs)
        for is_mine, reference in zip(mine, object_refs):
            if is_mine:
                _without_target(reference)
        others = [pair for is_mine, *pair in zip(mine, serialized_objects, object_refs) if not is_mine]
        return outside([one for one, _ in others], [one for _, one in others])

    rdt.RDTManager.is_managed_object = is_managed_object
    Worker._get_rdt_ids = staticmethod(get_rdt_ids)


def _without_target(reference: Any) -> None:
    """Raises :class:`UnsupportedError` when the program has set where the tensors of a reference are to go."""
    meta = ray._private.worker.global_worker.rdt_manager.get_rdt_metadata(reference.hex())
    if meta is not None and (meta.target_buffers or meta.target_device):
        raise UnsupportedError(
            f"{TRANSPORT} maps tensors, and fills none: copy what ray.get returns instead of set_target_for_ref", field="target"
        )
