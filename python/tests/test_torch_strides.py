"""Strides are exact, also of dimensions of size 1, because torch chooses kernels and memory formats by them."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Tuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


class AfterConvolution(nn.Module):
    """An operator after a convolution of one channel. The kernel depends on the memory format of the convolution's output."""

    def __init__(self, after: Callable[[Any], Any], dimensions: int = 2) -> None:
        super().__init__()
        convolution: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.convolution = convolution(1, 8, 3, padding=1)
        self.after = after

    def forward(self, x: Any) -> Any:
        return self.after(self.convolution(x))


class WithWeight(nn.Module):
    """An operator with one weight of the given shape."""

    def __init__(self, act: Callable[[Any, Any], Any], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))
        self.act = act

    def forward(self, x: Any) -> Any:
        return self.act(x, self.weight)


def _last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)


def _resize(mode: str, **more: Any) -> Callable[[Any], Any]:
    return lambda x: F.interpolate(x, scale_factor=1.5, mode=mode, **more)


def _grid(x: Any) -> Any:
    places = torch.linspace(-1, 1, 12).reshape(1, 2, 3, 2).expand(x.shape[0], -1, -1, -1)
    return F.grid_sample(x, places, align_corners=False)


#: Modules with weights that have dimensions of size 1, or with an operator whose kernel depends on the layout, and the shapes
#: of their inputs.
OPERATORS: Dict[str, Tuple[Callable[[], Any], Tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(1, 8, 3), (2, 1, 20)),
    "conv1d pointwise": (lambda: nn.Conv1d(8, 6, 1), (2, 8, 20)),
    "conv1d depthwise": (lambda: nn.Conv1d(8, 8, 5, groups=8), (2, 8, 20)),
    "conv2d": (lambda: nn.Conv2d(1, 32, 3), (2, 1, 12, 12)),
    "conv2d to one": (lambda: nn.Conv2d(6, 1, 3), (2, 6, 12, 12)),
    "conv2d pointwise": (lambda: nn.Conv2d(16, 24, 1), (2, 16, 7, 7)),
    "conv2d depthwise": (lambda: nn.Conv2d(16, 16, 3, groups=16, stride=2), (2, 16, 9, 9)),
    "conv2d grouped": (lambda: nn.Conv2d(8, 8, 3, groups=4), (2, 8, 9, 9)),
    "conv2d dilated": (lambda: nn.Conv2d(1, 8, 3, dilation=2), (2, 1, 12, 12)),
    "conv2d one row": (lambda: nn.Conv2d(3, 8, (1, 5)), (2, 3, 1, 20)),
    "conv2d channels last": (lambda: _last(nn.Conv2d(3, 8, 3)), (2, 3, 9, 9)),
    "conv2d depthwise channels last": (lambda: _last(nn.Conv2d(8, 8, 3, groups=8)), (2, 8, 9, 9)),
    "conv2d half": (lambda: nn.Conv2d(1, 8, 3).bfloat16(), (2, 1, 12, 12)),
    "conv3d": (lambda: nn.Conv3d(1, 8, 3), (1, 1, 6, 6, 6)),
    "conv3d depthwise": (lambda: nn.Conv3d(4, 4, 3, groups=4), (1, 4, 6, 6, 6)),
    "conv3d channels last": (
        lambda: nn.Conv3d(1, 4, 3).to(memory_format=torch.channels_last_3d),
        (1, 1, 6, 6, 6),
    ),
    "transposed conv1d": (lambda: nn.ConvTranspose1d(8, 1, 4, stride=2), (2, 8, 9)),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(16, 1, 4, stride=2), (2, 16, 6, 6)),
    "transposed conv2d from one": (lambda: nn.ConvTranspose2d(1, 16, 3), (2, 1, 6, 6)),
    "transposed conv2d depthwise": (lambda: nn.ConvTranspose2d(8, 8, 3, groups=8, stride=2), (2, 8, 6, 6)),
    "transposed conv3d": (lambda: nn.ConvTranspose3d(1, 4, 3), (1, 1, 4, 4, 4)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(1), (4, 1, 9)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(1), (4, 1, 5, 5)),
    "batch norm 3d": (lambda: nn.BatchNorm3d(4), (2, 4, 3, 3, 3)),
    "batch norm after": (lambda: AfterConvolution(nn.BatchNorm2d(8)), (2, 1, 8, 8)),
    "instance norm after": (lambda: AfterConvolution(nn.InstanceNorm2d(8, affine=True)), (2, 1, 8, 8)),
    "group norm after": (lambda: AfterConvolution(nn.GroupNorm(2, 8)), (2, 1, 8, 8)),
    "layer norm": (lambda: nn.LayerNorm((1, 6)), (3, 1, 6)),
    "layer norm after": (lambda: AfterConvolution(nn.LayerNorm((8, 8, 8))), (2, 1, 8, 8)),
    "max pool 1d after": (lambda: AfterConvolution(lambda x: F.max_pool1d(x, 2), 1), (2, 1, 8)),
    "max pool 2d after": (lambda: AfterConvolution(lambda x: F.max_pool2d(x, 2)), (2, 1, 8, 8)),
    "max pool 3d after": (lambda: AfterConvolution(lambda x: F.max_pool3d(x, 2), 3), (1, 1, 4, 4, 4)),
    "average pool 2d after": (lambda: AfterConvolution(lambda x: F.avg_pool2d(x, 2)), (2, 1, 8, 8)),
    "average pool 3d after": (lambda: AfterConvolution(lambda x: F.avg_pool3d(x, 2), 3), (1, 1, 4, 4, 4)),
    "adaptive average pool after": (lambda: AfterConvolution(lambda x: F.adaptive_avg_pool2d(x, 3)), (2, 1, 8, 8)),
    "adaptive max pool after": (lambda: AfterConvolution(lambda x: F.adaptive_max_pool2d(x, 3)), (2, 1, 8, 8)),
    "norm pool after": (lambda: AfterConvolution(lambda x: F.lp_pool2d(x, 2.0, 2)), (2, 1, 8, 8)),
    "nearest after": (lambda: AfterConvolution(_resize("nearest")), (2, 1, 8, 8)),
    "bilinear after": (lambda: AfterConvolution(_resize("bilinear", align_corners=False)), (2, 1, 8, 8)),
    "bilinear antialiased after": (lambda: AfterConvolution(_resize("bilinear", antialias=True)), (2, 1, 8, 8)),
    "bicubic after": (lambda: AfterConvolution(_resize("bicubic", align_corners=True)), (2, 1, 8, 8)),
    "area after": (lambda: AfterConvolution(_resize("area")), (2, 1, 8, 8)),
    "linear resize after": (lambda: AfterConvolution(_resize("linear"), 1), (2, 1, 8)),
    "trilinear after": (lambda: AfterConvolution(_resize("trilinear"), 3), (1, 1, 4, 4, 4)),
    "pixel shuffle after": (lambda: AfterConvolution(lambda x: F.pixel_shuffle(x, 2)), (2, 1, 8, 8)),
    "channel shuffle after": (lambda: AfterConvolution(lambda x: torch.channel_shuffle(x, 4)), (2, 1, 8, 8)),
    "grid sample after": (lambda: AfterConvolution(_grid), (2, 1, 8, 8)),
    "unfold after": (lambda: AfterConvolution(lambda x: F.unfold(x, 3)), (2, 1, 8, 8)),
    "reflect after": (lambda: AfterConvolution(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")), (2, 1, 8, 8)),
    "view after": (lambda: AfterConvolution(lambda x: x.view(x.shape[0], -1)), (2, 1, 8, 8)),
    "flatten after": (lambda: AfterConvolution(lambda x: torch.flatten(x, 1)), (2, 1, 8, 8)),
    "softmax after": (lambda: AfterConvolution(lambda x: F.softmax(x, 1)), (2, 1, 8, 8)),
    "mean after": (lambda: AfterConvolution(lambda x: x.mean((2, 3))), (2, 1, 8, 8)),
    "prelu": (lambda: nn.PReLU(1), (2, 3, 4)),
    "prelu after": (lambda: AfterConvolution(nn.PReLU(8)), (2, 1, 8, 8)),
    "linear to one": (lambda: nn.Linear(16, 1), (3, 16)),
    "linear from one": (lambda: nn.Linear(1, 16), (3, 1)),
    "bilinear form": (lambda: WithWeight(lambda x, w: F.bilinear(x, x, w), 1, 6, 6), (3, 6)),
    "matrix product": (lambda: WithWeight(torch.matmul, 1, 7, 1), (3, 5, 7)),
    "batched product": (lambda: WithWeight(torch.bmm, 3, 4, 1), (3, 5, 4)),
    "einsum": (lambda: WithWeight(lambda x, w: torch.einsum("bij,kj->bik", x, w), 1, 4), (3, 5, 4)),
    "broadcast": (lambda: WithWeight(torch.mul, 1, 6, 1, 1), (2, 6, 5, 5)),
    "broadcast channels last": (
        lambda: WithWeight(lambda x, w: x.contiguous(memory_format=torch.channels_last) + w, 1, 6, 1, 1),
        (2, 6, 5, 5),
    ),
    "concatenation": (
        lambda: WithWeight(lambda x, w: torch.cat([w.expand(x.shape[0], -1, -1, -1), x], 1), 1, 1, 4, 4),
        (2, 3, 4, 4),
    ),
    "recurrent": (lambda: nn.LSTM(1, 1, 2), (5, 2, 1)),
    "attention": (
        lambda: WithWeight(lambda x, w: F.scaled_dot_product_attention(x, w.expand_as(x), x), 1, 1, 6, 4),
        (2, 2, 6, 4),
    ),
}


def _run(module: Any, shape: Tuple[int, ...]) -> List[Tuple[Any, Any]]:
    """The outputs and gradients of a module, with their strides."""
    torch.manual_seed(7)
    parameters = list(module.parameters())
    dtype = parameters[0].dtype if parameters else torch.float32
    x = torch.randn(shape).to(dtype).requires_grad_()
    found = module.train()(x)
    outputs = [found] if isinstance(found, torch.Tensor) else [found[0], *found[1]]
    gradients = torch.autograd.grad(sum(o.square().sum() for o in outputs), [x, *parameters])
    evaluated = module.eval()(x.detach())
    more = [evaluated] if isinstance(evaluated, torch.Tensor) else [evaluated[0]]
    return [(tensor.stride(), tensor.detach().clone()) for tensor in (*outputs, *gradients, *more)]


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_operators_use_the_same_kernels(operator: str) -> None:
    make, shape = OPERATORS[operator]
    torch.manual_seed(3)
    plain = make()
    want = {name: tensor.stride() for name, tensor in plain.state_dict().items()}
    published = copy.deepcopy(plain)
    assert {name: tensor.stride() for name, tensor in published.state_dict().items()} == want, "a deep copy keeps strides"
    with torch.device("meta"):
        attached = make()
    reference = None
    with cotensor.Store() as store:
        ct.publish(published, "operator", store)
        ct.attach(attached, "operator", store)
        shown = ct.state_dict("operator", store)
        for tensors in (published.state_dict(), attached.state_dict(), shown):
            assert {name: tensor.stride() for name, tensor in tensors.items()} == want
        reference = _run(plain, shape)
        for module in (published, attached):
            for (stride, tensor), (wanted, other) in zip(_run(module, shape), reference):
                assert stride == wanted
                assert torch.equal(tensor, other)


#: Shapes with dimensions of size 1 or 0, with unusual strides.
STRIDED: List[Tuple[Tuple[int, ...], Tuple[int, ...]]] = [
    ((4, 1), (1, 1)),
    ((4, 1), (1, 4)),
    ((1, 3, 1, 1), (7, 1, 5, 0)),
    ((1,), (9,)),
    ((1, 1), (0, 0)),
    ((2, 1, 3), (3, 77, 1)),
    ((32, 1, 3, 3), (9, 9, 3, 1)),
    ((32, 1, 3, 3), (9, 1, 3, 1)),
    ((5, 1), (0, 3)),
    ((3, 1, 2), (8, 1, 4)),
    ((0, 3), (3, 1)),
    ((0, 3), (1, 5)),
    ((1, 0, 1), (4, 2, 9)),
    ((1,) * 9, tuple(range(9))),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
@pytest.mark.parametrize(("shape", "stride"), STRIDED)
def test_strides_are_exact(shape: Any, stride: Any, dtype: Any) -> None:
    module = nn.Module()
    memory = torch.arange(300).to(dtype)
    module.register_buffer("odd", memory.as_strided(shape, stride))
    other = nn.Module()
    other.register_buffer("odd", torch.empty(shape, dtype=dtype))
    with cotensor.Store() as store:
        ct.publish(module, "odd", store, attach=False)
        ct.attach(other, "odd", store)
        ct.publish_state_dict({"odd": module.odd}, "odd dict", store)
        for found in (other.odd, ct.state_dict("odd", store)["odd"], ct.state_dict("odd dict", store)["odd"]):
            assert (found.shape, found.stride()) == (module.odd.shape, module.odd.stride())
            assert torch.equal(found, module.odd)


def test_stride_beyond_the_header_limit_is_refused() -> None:
    module = nn.Module()
    module.register_buffer("far", torch.zeros(1).as_strided((1,), (1 << 60,)))
    with cotensor.Store() as store:
        with pytest.raises(cotensor.UnsupportedError, match="far.*contiguous"):
            ct.publish(module, "far", store)
        assert store.names() == []


class Digits(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def test_mnist_example_trains_after_publish() -> None:
    torch.manual_seed(1)
    plain = Digits()
    published = copy.deepcopy(plain)

    def train(model: Any) -> List[float]:
        torch.manual_seed(2)
        optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
        losses = []
        model.train()
        for _ in range(3):
            images, digits = torch.randn(8, 1, 28, 28), torch.randint(0, 10, (8,))
            optimizer.zero_grad()
            loss = F.nll_loss(model(images), digits)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        model.eval()
        with torch.no_grad():
            losses.append(F.nll_loss(model(images), digits, reduction="sum").item())
        return losses

    with cotensor.Store() as store:
        ct.publish(published, "mnist", store)
        assert train(published) == train(plain)
        for one, other in zip(published.parameters(), plain.parameters()):
            assert torch.equal(one, other)
