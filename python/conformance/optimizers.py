"""PyTorch's database of optimizers: each configuration trains a small model inside of the block."""

from __future__ import annotations

import copy
import io
from typing import Any, Dict, Iterator, List

import torch
from torch.testing._internal.common_optimizers import optim_db

from .case import Case, Variant
from .outcomes import Outcome
from .places import HOST, PLAIN, Place

#: Ways to update, which exclude each other.
_FLAGS = ("foreach", "fused", "capturable", "differentiable")


def names() -> List[str]:
    """All optimizers."""
    return [info.optim_cls.__name__ for info in optim_db]


def cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """The configurations of an optimizer, each with every way to update that it has."""
    info = next(info for info in optim_db if info.optim_cls.__name__ == name)
    flags = [flag for flag in _FLAGS if flag in info.supported_impls]
    flags += ["capturable"] if info.has_capturable_arg and "capturable" not in flags else []
    for number, one in enumerate(info.optim_inputs_func("cpu")):
        for flag in ["default", *[flag for flag in flags if flag != "differentiable"]]:
            options = {**one.kwargs, **({} if flag == "default" else {flag: True})}
            training = Training(info, options, dtype)
            variants: Dict[str, Variant] = {"steps": training.steps, "closure": training.closures, "state": training.state}
            if info.step_requires_closure:
                del variants["steps"]
            # The CPU refuses it.
            reference = PLAIN if flag == "capturable" else HOST
            yield Case(f"{number} {one.desc} {flag}", variants, reference)


class Net(torch.nn.Module):
    """A small model, with an embedding for optimizers of sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.sparse = sparse
        self.embedding = torch.nn.Embedding(5, 4, sparse=sparse)
        if not sparse:
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
            self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """A loss."""
        found = self.embedding(indices)
        if self.sparse:
            return found.square().sum()
        return self.norm(self.layers(found)).pow(3).mean() + found.sum()  # type: ignore[no-any-return]


class Training:
    """An optimizer with a configuration."""

    def __init__(self, info: Any, options: Dict[str, Any], dtype: torch.dtype) -> None:
        self._info, self._options, self._dtype = info, options, dtype

    def _begin(self) -> Net:
        torch.manual_seed(0)
        return Net(self._info.only_supports_sparse_grads).to(self._dtype)

    def _optimizer(self, model: Net) -> Any:
        parameters = list(model.parameters())
        if self._info.optim_cls is torch.optim.Muon:
            # For matrices only.
            parameters = [parameter for parameter in parameters if parameter.dim() == 2]
        options = copy.deepcopy(self._options)
        return self._info.optim_cls(parameters, **options)

    def _step(self, model: Net, optimizer: Any, place: Place, outcome: Outcome, closure: bool) -> None:
        indices = place.move(torch.tensor([0, 1, 2, 4, 1, 3]))

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = model(indices)
            value.backward()
            return value

        if closure:
            outcome.show("loss", optimizer.step(loss))
        else:
            outcome.show("loss", loss())
            optimizer.step()

    def _show(self, model: Net, optimizer: Any, outcome: Outcome) -> None:
        outcome.show("parameters", list(model.parameters()), device=False)
        outcome.show("buffers", list(model.buffers()), device=False)
        outcome.show("state", optimizer.state_dict()["state"], device=False)
        with torch.no_grad():
            outcome.show("loss after", model(next(model.parameters()).new_tensor([0, 1], dtype=torch.long)))

    def _train(self, place: Place, outcome: Outcome, closure: bool) -> None:
        model = self._begin()
        with place.block(model):
            optimizer = self._optimizer(model)
            for _ in range(4):
                self._step(model, optimizer, place, outcome, closure)
            self._show(model, optimizer, outcome)

    def steps(self, place: Place, outcome: Outcome) -> None:
        """Steps after a backward pass."""
        self._train(place, outcome, False)

    def closures(self, place: Place, outcome: Outcome) -> None:
        """Steps that call the model."""
        self._train(place, outcome, True)

    def state(self, place: Place, outcome: Outcome) -> None:
        """Steps of a second optimizer with the saved state of the first."""
        closure = self._info.step_requires_closure
        model = self._begin()
        with place.block(model):
            first = self._optimizer(model)
            for _ in range(2):
                self._step(model, first, place, outcome, closure)
            file = io.BytesIO()
            torch.save(first.state_dict(), file)
            file.seek(0)
            second = self._optimizer(model)
            second.load_state_dict(torch.load(file))
            for _ in range(2):
                self._step(model, second, place, outcome, closure)
            self._show(model, second, outcome)
