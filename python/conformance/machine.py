"""What a random program works on, in one place: a model, an optimizer, results and saved states."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from .layers import ROWS, WIDTH, Model, tied
from .outcomes import Outcome
from .places import Place

#: A step gets the machine and three random numbers.
Function = Callable[["Machine", int, int, int], Any]


@dataclass(frozen=True)
class Kind:
    """A kind of step, and how often it is drawn."""

    weight: float
    function: Function


#: All kinds by their names.
KINDS: Dict[str, Kind] = {}


def step(name: str, weight: float = 1.0) -> Callable[[Function], Function]:
    """Registers a kind of step."""

    def register(function: Function) -> Function:
        KINDS[name] = Kind(weight, function)
        return function

    return register


class Machine:
    """The state of a program. A step that finds nothing to work on does nothing, so that each part of a program is one."""

    def __init__(self, model: Model, place: Place, outcome: Outcome) -> None:
        self.model, self.place, self.outcome = model, place, outcome
        self.dtype = torch.float32
        self.label = ""
        #: Results that the program keeps, the newest one last.
        self.results: List[torch.Tensor] = []
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.states: List[Dict[str, Any]] = []
        #: A copy of the model.
        self.other: Optional[Model] = None
        self.handles: List[Any] = []
        #: Whether the program has given the model parameters that are on the device.
        self.has_device_parameters = False
        self._block: Optional[contextlib.ExitStack] = None
        #: The place of the block.
        self.entered = place

    @property
    def device(self) -> str:
        """Where inputs are, in the block."""
        return "cpu" if self.place.name == "host" else "simulated"

    @property
    def writes_weights(self) -> bool:
        """Whether a call of the model writes weights, also in evaluation: threads race then, and transforms refuse the write."""
        return self.has("embedding renormalized")

    def enter(self, place: Optional[Place] = None) -> None:
        """Enters a block."""
        self._block, self.entered = contextlib.ExitStack(), place or self.place
        self._block.enter_context(self.entered.block(self.model))

    def has(self, kind: str) -> bool:
        """Whether the model has a layer whose name begins so."""
        return any([getattr(layer, "name", "").startswith(kind) for layer in self.model.layers])

    def leave(self) -> None:
        """Leaves the block."""
        if self._block is not None:
            block, self._block = self._block, None
            block.close()
            tensors = [*self.model.parameters(), *self.model.buffers()]
            if any([not tensor.is_cpu for tensor in tensors]) and self.place.is_offloaded:
                # A copy of a model may have tensors on the device (docs/labs/offload.md).
                with tied(self.model):
                    self.model.cpu()

    def run(self, number: int, name: str, numbers: Tuple[int, int, int]) -> None:
        """A step; its error is one of its results."""
        self.label = f"{number} {name}"
        try:
            KINDS[name].function(self, *numbers)
        except Exception as error:
            self.outcome.show_error(self.label, error)
        # So that no chain of operations grows with the length of the program.
        del self.results[:-4]

    def show(self, value: Any, device: bool = True, close: bool = False) -> None:
        """Shows a result of the step."""
        self.outcome.show(self.label, value, device, close)

    def keep(self, *results: torch.Tensor) -> None:
        """Shows results of the step, and keeps them for later ones."""
        self.show(list(results))
        self.results.extend(results)

    def forget_results(self) -> None:
        """Before parameters get other memory: PyTorch's graphs have the new elements of some, and the old ones of others."""
        self.results.clear()

    def values(self, seed: int, *shape: int) -> torch.Tensor:
        """Random values where the program has its inputs."""
        generator = torch.Generator().manual_seed(seed)
        return self.place.move(torch.randn(*shape, generator=generator).to(self.dtype))  # type: ignore[no-any-return]

    def inputs(self, seed: int) -> torch.Tensor:
        """Rows for the model; one of three needs a gradient."""
        return self.values(seed, ROWS, WIDTH).requires_grad_(seed % 3 == 0)

    def parameter(self, number: int) -> Optional[torch.nn.Parameter]:
        """One of the parameters, if there is one."""
        found = list(self.model.parameters())
        return found[number % len(found)] if found else None

    def result(self, number: int) -> Optional[torch.Tensor]:
        """One of the newest results, if there is one."""
        return self.results[-1 - number % min(len(self.results), 2)] if self.results else None

    def layer(self, number: int) -> Optional[torch.nn.Module]:
        """One of the layers, if there is one."""
        found = list(self.model.layers)
        return found[number % len(found)] if found else None

    @contextlib.contextmanager
    def no_gradients_of_errors(self) -> Iterator[None]:
        """A backward pass that fails leaves no gradients and no graph: PyTorch does not say which of them it has reached."""
        try:
            yield
        except Exception:
            self.model.zero_grad()
            self.forget_results()
            raise

    def show_state(self, label: str) -> None:
        """Shows the model and its gradients."""
        self.label = label
        for name, parameter in self.model.named_parameters():
            self.outcome.show(f"{label} {name}", [parameter, parameter.requires_grad], device=False)
            self.outcome.show(f"{label} gradient of {name}", parameter.grad, device=False)
        for name, buffer in self.model.named_buffers():
            self.outcome.show(f"{label} {name}", buffer, device=False)
