"""The layers of random programs: each maps a batch of rows to one of the same shape, and can be copied and pickled."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

WIDTH = 8
ROWS = 3


class Model(nn.Module):
    """Layers in a row."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after all layers."""
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    """A layer with weights of its own, by a function that makes them and one that uses them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        _OWN[name][0](self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after this layer."""
        return _OWN[self.name][1](self, x)


class Scale(torch.autograd.Function):
    """A product, with a backward pass that saves both factors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Both gradients."""
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Shift(torch.autograd.Function):
    """A sum in place, which saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """The changed argument."""
        x.add_(bias).tanh_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Both gradients."""
        (y,) = ctx.saved_tensors
        inner = gradient * (1 - y * y)
        return inner, inner.sum(0)


class Symmetric(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The symmetric matrix of the upper triangle."""
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def _matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*(shape or (WIDTH, WIDTH))) / 3)


def _square(layer: Any) -> None:
    layer.weight, layer.bias = _matrix(), _matrix(WIDTH)


def _vector(layer: Any) -> None:
    layer.weight = _matrix(WIDTH)


def _table(**options: Any) -> Callable[[Any], None]:
    def make(layer: Any) -> None:
        layer.table = nn.Embedding(5, WIDTH, **options)

    return make


def _look_up(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x + layer.table(torch.arange(x.shape[0], device=x.device) * 2 % 5)


def _bag(layer: Any) -> None:
    layer.table = nn.EmbeddingBag(5, WIDTH, mode="mean")


def _look_up_bags(layer: Any, x: torch.Tensor) -> torch.Tensor:
    indices = torch.arange(2 * x.shape[0], device=x.device).reshape(-1, 2) % 5
    return x + layer.table(indices)


def _attention(layer: Any) -> None:
    layer.inner, layer.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)


def _attend(layer: Any, x: torch.Tensor) -> torch.Tensor:
    query, key, value = layer.inner(x).reshape(x.shape[0], 3, 2, WIDTH // 2).permute(1, 2, 0, 3).unbind(0)
    found = F.scaled_dot_product_attention(query, key, value)
    return layer.outer(found.transpose(0, 1).reshape(x.shape))


def _recurrent(layer: Any) -> None:
    layer.cell = nn.RNNCell(WIDTH, WIDTH)


def _recur(layer: Any, x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x)
    for _ in range(2):
        state = layer.cell(x, state)
    return state


def _tied(layer: Any) -> None:
    layer.first, layer.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    layer.second.weight = layer.first.weight


@contextlib.contextmanager
def tied(module: nn.Module) -> Iterator[None]:
    """A block that moves or converts a module: PyTorch makes new parameters for tensors of a Python backend, tied again here."""
    layers = [part for part in module.modules() if isinstance(part, Layer) and part.name == "tied"]
    # A program may have replaced one of the two.
    layers = [layer for layer in layers if layer.second.weight is layer.first.weight]  # type: ignore[union-attr]
    yield
    for layer in layers:
        layer.second.weight = layer.first.weight  # type: ignore[union-attr,assignment]


def _run_tied(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer.second(layer.first(x).tanh())  # type: ignore[no-any-return]


def _statistics(layer: Any) -> None:
    layer.register_buffer("mean", torch.zeros(WIDTH))
    layer.register_buffer("count", torch.zeros((), dtype=torch.long))
    layer.register_buffer("last", torch.ones(WIDTH), persistent=False)


def _run_statistics(layer: Any, x: torch.Tensor) -> torch.Tensor:
    if layer.training:
        mean = x.detach().mean(0)
        layer.mean.mul_(0.9).add_(mean, alpha=0.1)
        layer.count += 1
        layer.last = mean
    return x - layer.mean + layer.last / (layer.count + 1)


def _masks(layer: Any) -> None:
    layer.register_buffer("mask", torch.arange(WIDTH) % 3 == 0)
    layer.fill = _matrix(WIDTH)


def _run_masks(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.where(layer.mask, x, layer.fill).masked_fill(~layer.mask & (x > 2), 0.5)


def _parametrized(function: Callable[[nn.Module], Any]) -> Callable[[Any], None]:
    def make(layer: Any) -> None:
        layer.inner = nn.Linear(WIDTH, WIDTH)
        function(layer.inner)

    return make


def _write(layer: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + layer.bias
    x.mul_(layer.weight[0])
    x[:, :2] = layer.weight[:2, 1]
    x[..., 3].add_(layer.bias[3])
    x[layer.mask if hasattr(layer, "mask") else slice(1)] *= 0.5
    return x


def _write_out(layer: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = torch.zeros_like(x)
        torch.mm(x.detach(), layer.weight, out=out)
        torch.add(out, layer.bias, out=out)
    return x + out


def _parts(layer: Any, x: torch.Tensor) -> torch.Tensor:
    first, second = layer.weight.chunk(2)
    joined = torch.cat([first.T, second.T], 1)
    row = layer.other.view(-1)[:WIDTH] + layer.other.diagonal()
    chosen = layer.weight.index_select(1, torch.tensor([3, 1], device=x.device)).sum(1)
    return torch.einsum("nd,de->ne", x, joined) + row * chosen + layer.bias.expand_as(x)


def _squares(layer: Any) -> None:
    _square(layer)
    layer.other = _matrix()


def _lists(layer: Any) -> None:
    layer.vectors = nn.ParameterList([_matrix(WIDTH), _matrix(WIDTH)])
    layer.named = nn.ParameterDict({"a": _matrix(WIDTH), "b": nn.Parameter(torch.zeros(()), requires_grad=False)})


def _run_lists(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (layer.vectors[0] * 2 + layer.vectors[1]) + layer.named["a"] * (1 + layer.named["b"])


def _branches(layer: Any, x: torch.Tensor) -> torch.Tensor:
    if layer.weight.sum() > 0 and float(layer.bias[0]) < 1:
        return F.linear(x, layer.weight)
    return x * layer.bias - layer.bias.max().item()


def _flat(layer: Any) -> None:
    flat = torch.randn(WIDTH * WIDTH + WIDTH) / 3
    # Without ``data``, both would count the writes of each other.
    layer.weight = nn.Parameter(flat.data[: WIDTH * WIDTH].view(WIDTH, WIDTH).t())
    layer.bias = nn.Parameter(flat.data[WIDTH * WIDTH :])


def _mixed(layer: Any) -> None:
    layer.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64) / 3)
    layer.phase = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
    layer.empty = nn.Parameter(torch.zeros(0, WIDTH))


def _run_mixed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y = (x.to(layer.weight.dtype) @ layer.weight).to(x.dtype)
    return torch.cat([y + (x * layer.phase).real.to(x.dtype), layer.empty.to(x.dtype)])


def _run_checkpoint(reentrant: bool) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def run(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: F.linear(y, layer.weight, layer.bias).tanh(), x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    return run


def _linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer.inner(x)  # type: ignore[no-any-return]


#: How a layer makes its weights, and how it uses them.
_OWN: Dict[str, Tuple[Callable[[Any], None], Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "embedding": (_table(), _look_up),
    "embedding sparse": (_table(sparse=True), _look_up),
    "embedding padded": (_table(padding_idx=2), _look_up),
    "embedding renormalized": (_table(max_norm=1.0), _look_up),
    "embedding bag": (_bag, _look_up_bags),
    "attention": (_attention, _attend),
    "recurrent": (_recurrent, _recur),
    "tied": (_tied, _run_tied),
    "statistics": (_statistics, _run_statistics),
    "masks": (_masks, _run_masks),
    "weight norm": (_parametrized(parametrizations.weight_norm), _linear),
    "spectral norm": (_parametrized(parametrizations.spectral_norm), _linear),
    "symmetric": (_parametrized(lambda part: parametrize.register_parametrization(part, "weight", Symmetric())), _linear),
    "function": (_vector, lambda layer, x: Scale.apply(x, layer.weight)),
    "function in place": (_vector, lambda layer, x: Shift.apply(x * 2, layer.weight)),
    "checkpoint": (_square, _run_checkpoint(False)),
    "checkpoint reentrant": (_square, _run_checkpoint(True)),
    "writes": (_square, _write),
    "out": (_square, _write_out),
    "parts": (_squares, _parts),
    "lists": (_lists, _run_lists),
    "branches": (_square, _branches),
    "dropped": (_square, lambda layer, x: F.linear(x, F.dropout(layer.weight, 0.3, layer.training), layer.bias)),
    "flat": (_flat, lambda layer, x: F.linear(x, layer.weight, layer.bias)),
    "mixed": (_mixed, _run_mixed),
}

_PYTORCH: Dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "bilinear": lambda: _Paired(nn.Bilinear(WIDTH, WIDTH, WIDTH)),
    "convolution": lambda: _Channels(nn.Conv1d(1, 1, 3, padding=1)),
    "transposed convolution": lambda: _Channels(nn.ConvTranspose1d(1, 1, 3, padding=1)),
    "convolution 2d": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 3, padding=1), nn.Flatten()),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm averaged": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "instance norm": lambda: _Channels(nn.InstanceNorm1d(1, affine=True, track_running_stats=True)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "prelu": lambda: nn.PReLU(),
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "gelu": lambda: nn.GELU(),
    "silu": lambda: nn.SiLU(),
    "dropout": lambda: nn.Dropout(0.3),
}

LAYERS = (*_PYTORCH, *_OWN)


class _Channels(nn.Module):
    """A layer of one channel."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after the layer."""
        return self.inner(x.unsqueeze(1)).squeeze(1)  # type: ignore[no-any-return]


class _Paired(nn.Module):
    """A layer of two arguments."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rows after the layer."""
        return self.inner(x, x.tanh())  # type: ignore[no-any-return]


def make(name: str, seed: int) -> nn.Module:
    """A layer with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _PYTORCH[name]() if name in _PYTORCH else Layer(name)
