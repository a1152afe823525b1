"""Files of weights in the format safetensors, published without loading them into PyTorch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from torch_models import family, run  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


@pytest.fixture(scope="module")
def store(daemon: Any) -> Any:
    with daemon.connect() as opened:
        yield opened


@pytest.mark.parametrize("shards", [False, True])
def test_safetensors_file_is_published(store: Any, tmp_path: Path, shards: bool) -> None:
    kind, config, inputs = family("clip")
    model = kind(config)
    model.save_pretrained(tmp_path, max_shard_size="50KB" if shards else "1GB")
    name = f"file {shards}"
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 if shards else (tmp_path / "model.safetensors").is_file()
    seen: List[Any] = []
    path = tmp_path if shards else tmp_path / "model.safetensors"
    ct.publish_file(path, name, store, progress=lambda done, total: seen.append((done, total)))
    found = ct.state_dict(name, store)
    want: Dict[str, Any] = {}
    for file in tmp_path.glob("*.safetensors"):
        want.update(safetensors.load_file(file))
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value), key
    assert seen[-1] == (sum(value.nbytes for value in want.values()),) * 2
    other = kind(config)
    ct.attach(other, name, store)
    assert run(other, inputs) == run(model, inputs)


def test_file_of_every_dtype_is_published(store: Any, tmp_path: Path) -> None:
    dtypes = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    dtypes += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    want = {str(dtype): torch.arange(7).to(dtype) for dtype in dtypes}
    want.update(scalar=torch.tensor(3.0), empty=torch.zeros(2, 0))
    safetensors.save_file(want, tmp_path / "all.safetensors")
    ct.publish_file(tmp_path / "all.safetensors", "all", store)
    found = ct.state_dict("all", store)
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert (found[key].dtype, found[key].shape) == (value.dtype, value.shape)
        assert torch.equal(found[key], value)
    scales = {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}
    (tmp_path / "f8.safetensors").write_bytes(file_of({"w": scales}, bytes(4)))
    with pytest.raises(cotensor.UnsupportedError, match="w: F8_E8M0"):
        ct.publish_file(tmp_path / "f8.safetensors", "f8", store)


def file_of(header: Any, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> Any:
    return {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


BAD_FILES: Dict[str, bytes] = {
    "empty": b"",
    "short": b"\x08\0\0",
    "a header without end": struct.pack("<Q", 1 << 60) + b"{}",
    "no JSON": file_of(b"{{"),
    "deep": file_of(b"[" * 100_000),
    "a list": file_of([]),
    "no entry": file_of({"w": 3}),
    "no dtype": file_of({"w": {"shape": [4], "data_offsets": [0, 16]}}),
    "past the end": file_of(entry(shape=[8], data_offsets=[0, 32])),
    "a wrong size": file_of(entry(shape=[3])),
    "backwards": file_of(entry(data_offsets=[16, 0])),
    "negative": file_of(entry(data_offsets=[-16, 0])),
    "huge": file_of(entry(shape=[1 << 40, 1 << 40])),
    "fractions": file_of(entry(shape=[4.0])),
    "overlapping": file_of({**entry(), "v": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}),
    "a name twice": file_of(b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":3}'),
}


@pytest.mark.parametrize("what", sorted(BAD_FILES))
def test_damaged_file_is_refused(store: Any, tmp_path: Path, what: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(BAD_FILES[what])
    with pytest.raises(cotensor.CorruptError) as error:
        ct.publish_file(path, "damaged", store)
    assert error.value.file == str(path)
    assert "damaged" not in store.names()


def test_damaged_folder_is_refused(store: Any, tmp_path: Path) -> None:
    with pytest.raises(cotensor.NotFoundError):
        ct.publish_file(tmp_path, "folder", store)
    with pytest.raises(cotensor.NotFoundError):
        ct.publish_file(tmp_path / "nothing.safetensors", "folder", store)
    with pytest.raises(cotensor.InvalidError):
        ct.publish_file(3, "folder", store)  # type: ignore[arg-type]
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "a.safetensors").write_bytes(file_of(entry()))
    outside = tmp_path.parent / "outside.safetensors"
    outside.write_bytes(file_of(entry()))
    for weights in ({"w": "../outside.safetensors"}, {"w": str(outside)}, {"v": "a.safetensors"}, {}, [], {"w": 3}):
        index.write_text(json.dumps({"weight_map": weights}))
        with pytest.raises(cotensor.CorruptError):
            ct.publish_file(tmp_path, "folder", store)
    index.write_text(json.dumps({"weight_map": {"w": "b.safetensors"}}))
    with pytest.raises(cotensor.NotFoundError):
        ct.publish_file(tmp_path, "folder", store)
    assert "folder" not in store.names()
