"""The tensors of the host that a program sees on a device."""

from __future__ import annotations

import sys
import threading
from typing import Iterable, List, Optional, Sequence, Set, Tuple

import torch

from .arguments import Uses
from .devices import Devices
from .marks import Marks
from .mover import Mover
from .weights import Part, Weight, tensors_of

#: PyTorch before 2.3 does not tell how often memory is used.
_KNOWS_USES = hasattr(torch.Tensor, "_use_count") and hasattr(torch._C, "_storage_Use_Count")


class HostTensors:
    """The tensors of the host that a session manages, and those that it only shows on its device."""

    def __init__(self, devices: Devices, models: Sequence[torch.nn.Module], results_on_host: bool) -> None:
        self.devices = devices
        self.models = list(models)
        #: Whether results leave the device at once; then they are marked.
        self.results_on_host = results_on_host
        self.weights = devices.movers[0].weights
        #: Results on the host that belong to the device.
        self.marks = Marks()
        #: Tensors of the host that are not weights, and that operations on the device have read: the program has them there.
        self.read = Marks()
        self._local = threading.local()
        #: How many tensors the weights have when those that the program has freed are looked for.
        self._sweep_at = 0 if _KNOWS_USES else sys.maxsize

    def belongs(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the host is shown as one of the device."""
        return (tensor in self.marks or self.weights.belongs(tensor)) and not self._in_node_of_host()

    def holders(self) -> Tuple[object, object]:
        """Know the tensors of the host that are shown as ones of the device."""
        return self.weights.key, self.marks.key

    def node_of_host(self) -> None:
        """The function of the current node of the backward pass ran on the host."""
        node = torch._C._current_autograd_node()
        self._local.node_of_host = None if node is None else node._sequence_nr()

    def _in_node_of_host(self) -> bool:
        """Whether a node of the backward pass runs whose function ran on the host: its tensors are shown where they are."""
        node = torch._C._current_autograd_node() if torch._C._current_graph_task_id() != -1 else None
        return node is not None and node._sequence_nr() == getattr(self._local, "node_of_host", None)

    def of_models(self) -> List[torch.Tensor]:
        """The parameters and buffers that the models have now."""
        return [tensor for model in self.models for _, tensor in tensors_of(model)]

    # Weights.
    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host on all devices."""
        # The lock: threads may read one parameter for the first time.
        with self.devices.lock:
            for mover in self.devices.movers:
                mover.add(name, tensor)
            if len(self.weights.owners) >= self._sweep_at:
                self._sweep()

    def _sweep(self) -> None:
        """Releases the weights of other modules, and former ones of the models, that the program has freed."""
        kept = {id(tensor) for tensor in self.of_models()}
        for memory, weights in list(self.weights.by_storage.items()):
            owners = [owner for weight in weights for owner in weight.owners]
            if not any([id(owner.tensor) in kept for owner in owners]) and self._only_here(memory, weights, owners):
                for owner in owners:
                    self.released(owner)
        # Looks at each tensor once for each one that is added.
        self._sweep_at = 2 * max(len(self.weights.owners), len(kept))

    def _only_here(self, memory: int, weights: Sequence[Weight], owners: Sequence[Part]) -> bool:
        """Whether only the session has the tensors and the memory of weights."""
        count = len(self.devices.movers)
        for owner in owners:
            for mover in self.devices.movers:
                # Its node of the graph refers to the tensor.
                mover.weights.owners[id(owner.tensor)].linked = None
        # Each mover has a part, and the call has the tensor.
        if any([sys.getrefcount(owner.tensor) > count + 1 or owner.tensor._use_count() > 1 for owner in owners]):
            return False
        # Each mover has the sources, which may be views of another tensor, and the call has the memory.
        sources = sum([1 + weight.source._is_view() for weight in weights])
        return torch._C._storage_Use_Count(memory) <= len(owners) + count * sources + 1

    def add_models(self, part: Optional[torch.nn.Module] = None) -> None:
        """Manages the parameters and buffers of the models, or of one part of them."""
        found = None if part is None else {id(tensor) for _, tensor in tensors_of(part)}
        for model in self.models:
            for name, tensor in tensors_of(model):
                if found is None or id(tensor) in found:
                    self.add(name, tensor)

    def add_parameters(self, part: torch.nn.Module) -> None:
        """Manages the parameters of a part of the models."""
        found = {id(parameter) for parameter in part.parameters()}
        for model in self.models:
            for name, parameter in model.named_parameters():
                if id(parameter) in found:
                    self.add(name, parameter)

    def add_read(self, tensors: Iterable[Optional[torch.Tensor]]) -> None:
        """Manages those of some buffers that operations have read: without the session, they would be on the device already."""
        for tensor in tensors:
            if tensor is not None and tensor in self.read and not self.belongs(tensor):
                self.add("buffer", tensor)

    def find_weights(self, uses: Uses, tensors: Sequence[torch.Tensor], weights: List[Weight]) -> List[torch.Tensor]:
        """Gives those of some tensors of the host their parts in ``uses`` that are weights, and adds these to ``weights``.
        Returns the other tensors."""
        others: List[torch.Tensor] = []
        for tensor in tensors:
            part = self.part(tensor)
            if part is None:
                others.append(tensor)
                continue
            uses[id(tensor)] = tensor, part
            if part.weight not in weights:
                weights.append(part.weight)
        return others

    def part(self, tensor: torch.Tensor) -> Optional[Part]:
        """The part of a weight that a tensor of the host shows now. Parameters are weights from their first use on."""
        owner = self.weights.owners.get(id(tensor))
        if owner is not None:
            self.replaced(owner)
        part = self.weights.part(tensor)
        if part is None and (type(tensor) is torch.nn.Parameter or getattr(tensor, "_is_param", False)):
            self.add("parameter", tensor)
            part = self.weights.part(tensor)
        return part

    def refresh(self, tensor: torch.Tensor) -> None:
        """Manages a tensor of the host with the memory that it has now, if it is a weight."""
        owner = self.weights.owners.get(id(tensor))
        if type(tensor) is torch.nn.Parameter if owner is None else owner.address != tensor.data_ptr():
            self.part(tensor)

    def replaced(self, owner: Part) -> None:
        """An owner of a weight may have other memory."""
        with self.devices.lock:
            for mover in self.devices.movers:
                mover.replace(mover.weights.owners[id(owner.tensor)])

    def released(self, owner: Part) -> None:
        """An owner is not a weight any more."""
        with self.devices.lock:
            for mover in self.devices.movers:
                mover.release(mover.weights.owners[id(owner.tensor)])

    def come_home(self, parameters: Iterable[torch.Tensor]) -> None:
        """The program has moved parameters to the host: they are where their memory is, until an operation reads them."""
        for parameter in parameters:
            owner = self.weights.owners.get(id(parameter))
            if owner is not None:
                self.released(owner)
            self.show(parameter, False)

    def changed(self, tensor: torch.Tensor, by: Optional[Mover] = None) -> None:
        """A tensor of the host was written without a new version; the copy of ``by`` was, too. All sessions have to know."""
        for mover in self.devices.everywhere():
            for weight in mover.weights.sharing(tensor) if mover is not by else ():
                weight.edits += 1

    def rebound(self, tensor: torch.Tensor) -> None:
        """A tensor of the host may show other elements than before, also from the address that it had (``set_``, ``resize_``).
        All sessions look at it before its next use."""
        for mover in self.devices.everywhere():
            owner = mover.weights.owners.get(id(tensor))
            if owner is not None:
                mover.weights.forget_address(owner)

    def exposed(self, tensor: torch.Tensor) -> None:
        """The program has the address of a tensor, and may write at any time."""
        if id(tensor) in self.weights.owners:
            # The address of the memory that it has now.
            self.refresh(tensor)
        for mover in self.devices.movers:
            for weight in mover.weights.sharing(tensor):
                weight.exposed = True

    def conceal(self) -> None:
        """The program writes by no address any more that it was given."""
        with self.devices.lock:
            for mover in self.devices.movers:
                for weight in mover.weights.all:
                    weight.exposed = False

    def fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors of the host fit on each device together, beside activations."""
        weights: Set[Weight] = set()
        others = 0
        for tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                return False
            part = self.weights.part(tensor)
            if part is None:
                others += tensor.nbytes
            else:
                weights.add(part.weight)
        size_bytes = others + sum([weight.size_bytes for weight in weights])
        return all([size_bytes <= mover.own_budget() for mover in self.devices.movers])

    # What the program sees.
    def show(self, tensor: torch.Tensor, on_device: bool) -> None:
        """Shows a tensor of the host, which is not a weight, as one of the device or as what it is."""
        if on_device:
            self.marks.add(tensor)
        else:
            self.marks.discard(tensor)

    def show_as(self, tensor: torch.Tensor, data: object) -> None:
        """Shows a tensor where ``data`` is shown, if both are on the host."""
        if isinstance(data, torch.Tensor) and data in self.marks:
            self.marks.add(tensor)

    def forget_places(self, *values: torch.Tensor) -> List[bool]:
        """Shows tensors of the host where they are. Returns whether each was shown as one of the device."""
        shown = [value in self.marks for value in values]
        for value in values:
            self.marks.discard(value)
            self.read.discard(value)
            for mover in self.devices.movers:
                owner = mover.weights.owners.get(id(value))
                if owner is not None:
                    # Its node of the graph refers to the tensor.
                    owner.linked = None
        return shown

    def forget_all(self) -> None:
        """Results are tensors of the host from now on."""
        self.marks.clear()
        self.read.clear()
