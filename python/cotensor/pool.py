"""Models of a folder for many callers: each is loaded once, and what one computed the others take over.

::

    pool = ResourcePoolBridgeIntegration(max_connections=2, models="models")
    manager = pool.setup_tensor_sharing(max_memory_mb=2048)
    model = await pool.get_model("text_embedding", "bert-base-uncased")
    result = model("Sample text")
    result["output_tensors"]["text_embedding"].numpy()

Models are ONNX folders as hubs lay them out: config.json, tokenizer.json or preprocessor_config.json, onnx/\\*.onnx.
"""

from __future__ import annotations

import asyncio
import io
import os
from typing import Any, Mapping, Optional, Sequence, Union

from . import _checks
from ._native import PooledModel, ResourcePool, SharedTensor, Store, TensorSharingManager
from .errors import InvalidError, UnsupportedError

#: The task that inputs mean when nobody names one, where the model can do it.
_TASKS = {
    frozenset({"text"}): ("sentence-embedding",),
    frozenset({"image"}): ("image-embedding",),
    frozenset({"image", "text"}): ("image-text-retrieval",),
    frozenset({"image", "texts"}): ("zero-shot-image-classification",),
    frozenset({"audio"}): ("transcription",),
}
_INPUTS = ("text", "image", "audio", "texts")
_OPTIONS = ("task", "head", "max_new_tokens", "min_new_tokens")


class ResourcePoolBridgeIntegration:
    """A pool of models, and the tensors that they share.

    ``models`` is the folder that holds the models' folders (``COTENSOR_MODELS``, else the current folder). At most
    ``max_connections`` calls run at a time; others wait. ``store`` is where weights and results lie: with
    ``cotensor.connect()`` every process on the machine that runs the same model shares them. ``threads`` are the
    engine's.
    """

    def __init__(
        self,
        max_connections: int = 4,
        models: Optional[Union[str, "os.PathLike[str]"]] = None,
        store: Optional[Store] = None,
        *,
        threads: Optional[int] = None,
    ) -> None:
        _checks.count(max_connections, "max_connections", 1)
        if threads is not None:
            _checks.count(threads, "threads", 1)
        folder = os.environ.get("COTENSOR_MODELS") or "." if models is None else models
        self._pool = ResourcePool(folder, max_connections, store, threads)
        self._manager: Optional[TensorSharingManager] = None
        self.models = os.fspath(folder)
        self.max_connections = max_connections

    @property
    def store(self) -> Store:
        """Where weights and results lie."""
        return self._pool.store

    def setup_tensor_sharing(self, max_memory_mb: Optional[int] = None) -> TensorSharingManager:
        """A manager of the tensors in the pool's store, which is limited to ``max_memory_mb`` MiB, weights included.

        Called again, it gives the same manager with the new limit. A daemon's limit is the daemon's to set
        (`cotensor serve --max-memory`): :class:`UnsupportedError` says so.
        """
        if self._manager is None:
            self._manager = self._pool.setup_tensor_sharing(max_memory_mb)
        elif max_memory_mb is not None:
            self.store.limit_memory(max_memory_mb)
        return self._manager

    async def get_model(
        self,
        model_type: str,
        model_name: str,
        hardware_preferences: Optional[Mapping[str, Any]] = None,
    ) -> "Model":
        """The model ``model_name``, a folder below the pool's; however many ask, one copy is loaded.

        ``model_type`` is a kind (``"text_embedding"``), a modality (``"text"``, ``"vision"``, ``"audio"``) or a family
        (``"bert"``), and the model has to be of it. ``hardware_preferences["priority_list"]`` names devices, best
        first; those that cannot be used here are in the model's ``skipped``, each with the reason.

        Raises :class:`NotFoundError` without such a folder, :class:`InvalidError` for a model of another type,
        :class:`UnsupportedError` when no preferred device can be used, or for a preference that nothing here can serve.
        """
        preferences = dict(hardware_preferences or {})
        devices = preferences.pop("priority_list", None)
        if preferences:
            unknown = ", ".join(sorted(map(str, preferences)))
            raise UnsupportedError(f"nothing here can serve {unknown}", field="hardware_preferences")
        if devices is not None:
            devices = [devices] if isinstance(devices, str) else [str(device) for device in devices]
        found = await asyncio.to_thread(self._pool.get_model, model_type, model_name, devices)
        return Model(found, model_name)

    async def share_tensor_between_models(
        self,
        tensor_data: Any,
        tensor_name: str,
        producer_model: str,
        consumer_models: Sequence[str],
        storage_type: str = "cpu",
    ) -> SharedTensor:
        """Publishes an array as ``tensor_name``, acquired once for its producer and once for every consumer.

        They hold it until they release it, or ``manager.release_model_tensors(model)`` does. One copy, counted.
        ``storage_type`` is ``"cpu"``; others raise :class:`UnsupportedError`.
        """
        return await asyncio.to_thread(
            self._share, tensor_data, tensor_name, producer_model, list(consumer_models), storage_type
        )

    def _share(
        self,
        data: Any,
        tensor_name: str,
        producer_model: str,
        consumer_models: list[str],
        storage_type: str,
    ) -> SharedTensor:
        if not (hasattr(data, "dtype") and hasattr(data, "shape")):
            import numpy

            data = numpy.asarray(data)
        manager = self.setup_tensor_sharing()
        tensor = manager.register_shared_tensor(
            tensor_name, tuple(data.shape), storage_type, producer_model, consumer_models, data.dtype
        )
        try:
            tensor.write(data)
            manager.share_tensor_between_models(tensor_name, producer_model, consumer_models)
        except BaseException:
            tensor.release(producer_model)
            raise
        return tensor

    def __repr__(self) -> str:
        return f"<ResourcePoolBridgeIntegration of {self.models!r}, {self.max_connections} connections>"


class Model:
    """A model of a pool, to be called."""

    def __init__(self, model: PooledModel, name: str) -> None:
        self._model = model
        #: The name that it was asked for by.
        self.name = name

    @property
    def family(self) -> str:
        """``bert``, ``vit``, …"""
        return self._model.family

    @property
    def device(self) -> str:
        """Where it runs."""
        return self._model.device

    @property
    def skipped(self) -> dict[str, str]:
        """The preferred devices that were passed over, each with the reason."""
        return dict(self._model.skipped)

    @property
    def tasks(self) -> list[str]:
        """What it can be asked for."""
        return [name for name, _ in self._model.tasks]

    def is_same_copy(self, other: "Model") -> bool:
        """Whether both are one loaded copy."""
        return self._model.is_same_copy(other._model)

    def __call__(self, inputs: Any = None, **more: Any) -> dict[str, Any]:
        """Runs the model on a text, or on a dict (or keywords) of ``text``, ``image``, ``audio``, ``texts``.

        An image is a file's path or bytes (PNG, JPEG, WebP, BMP), a PIL image, or an array of uint8
        [height, width, 3]; audio is the path or bytes of a WAV, FLAC, MP3 or Ogg Vorbis file.
        ``task`` names the task where the inputs do not decide it (see ``tasks``); ``head``, ``max_new_tokens`` and
        ``min_new_tokens`` are options of it.

        The result has ``answer``, ``outputs`` (the numbers behind it), ``stages`` (what ran, and what was there
        already), ``notices``, ``device``, and ``output_tensors``: what the stages made, by kind, as tensors that models
        share. Waits while as many calls run as the pool allows.
        """
        asked = dict(inputs) if isinstance(inputs, Mapping) else {} if inputs is None else {"text": inputs}
        asked.update(more)
        unknown = sorted(set(asked) - {*_INPUTS, *_OPTIONS})
        if unknown:
            there = ", ".join((*_INPUTS, *_OPTIONS))
            raise InvalidError(f"no such input; there are: {there}", field=str(unknown[0]))
        asked = {name: value for name, value in asked.items() if value is not None}
        task = asked.pop("task", None) or self._task(asked)
        if "image" in asked:
            asked["image"] = _image(asked["image"])
        result: dict[str, Any] = self._model.run(task, user=self.name, **asked)
        result["device"] = self.device
        return result

    def _task(self, asked: Mapping[str, Any]) -> str:
        wanted = _TASKS.get(frozenset(name for name in _INPUTS if name in asked), ())
        for task in wanted:
            if task in self.tasks:
                return task
        given = ", ".join(sorted(asked)) or "nothing"
        raise InvalidError(
            f"{self.name} ({self.family}) is given {given}: say which of its tasks is meant: {', '.join(self.tasks)}",
            field="task",
        )

    def __repr__(self) -> str:
        return f"<Model {self.name!r}, {self.family} on {self.device}>"


def _image(image: Any) -> Union[str, bytes]:
    """The path or the bytes of an image file."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)
    if hasattr(image, "save") and hasattr(image, "mode"):
        file = io.BytesIO()
        image.convert("RGB").save(file, format="PNG")
        return file.getvalue()
    return _png(image)


def _png(array: Any) -> bytes:
    """An array of uint8 [height, width, 3] as a PNG file."""
    import struct
    import zlib

    import numpy

    pixels = numpy.asarray(array)
    if pixels.dtype != numpy.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        message = f"an image is uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}"
        raise InvalidError(message, field="image")
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    # Each row begins with the number of its filter: none.
    rows = numpy.zeros((height, 1 + 3 * width), numpy.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


__all__ = ["Model", "ResourcePoolBridgeIntegration"]
