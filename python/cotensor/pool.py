"""The models of a folder for many callers. Each model is loaded once, and callers share computed results.

::

    pool = ResourcePoolBridgeIntegration(max_connections=2, models="models")
    manager = pool.setup_tensor_sharing(max_memory_mb=2048)
    model = await pool.get_model("text_embedding", "bert-base-uncased")
    result = model("Sample text")
    result["output_tensors"]["text_embedding"].numpy()

A model is a folder in the layout of model hubs: config.json, tokenizer.json or preprocessor_config.json, onnx/\\*.onnx.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from typing import Any, Generator, Mapping, Optional, Sequence, Union

from . import _checks, _elsewhere
from ._native import PooledModel, ResourcePool, SharedTensor, Store, TensorSharingManager
from .errors import InvalidError, UnsupportedError

#: Precisions for which a model without a variant of so many bits is quantized.
_BITS = ("2", "3", "4", "8")


class ResourcePoolBridgeIntegration:
    """A pool of models, and the tensors that they share.

    ``models`` is the folder with the models' folders: by default ``COTENSOR_MODELS``, else the current folder. At most
    ``max_connections`` calls run at a time; others wait. ``store`` keeps weights and results. With ``cotensor.connect()``, all
    processes that run the same model share them. ``threads`` is the number of threads of the engine.
    ``engine`` is ``"ort"`` (onnxruntime, if it is installed), ``"rten"``, or ``"auto"`` for the fastest one that supports a
    model; by default ``COTENSOR_ENGINE``, else ``"auto"``.
    """

    def __init__(
        self,
        max_connections: int = 4,
        models: Optional[Union[str, "os.PathLike[str]"]] = None,
        store: Optional[Store] = None,
        *,
        threads: Optional[int] = None,
        engine: Optional[str] = None,
    ) -> None:
        _checks.count(max_connections, "max_connections", 1)
        if threads is not None:
            _checks.count(threads, "threads", 1)
        folder = os.environ.get("COTENSOR_MODELS") or "." if models is None else models
        self._pool = ResourcePool(folder, max_connections, store, threads, engine)
        self._manager: Optional[TensorSharingManager] = None
        self.models = os.fspath(folder)
        self.max_connections = max_connections

    @property
    def store(self) -> Store:
        """The store of weights and results."""
        return self._pool.store

    def setup_tensor_sharing(self, max_memory_mb: Optional[int] = None) -> TensorSharingManager:
        """Returns a manager of the tensors in the pool's store, and limits the store to ``max_memory_mb`` MiB, weights included.

        Further calls return the same manager with the new limit. Only `cotensor serve --max-memory` sets a daemon's limit; for a
        daemon's store this raises :class:`UnsupportedError`.
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
        """Loads the model in the folder ``model_name``, once for all callers. Without such a folder, ``model_name`` is a name on
        the hub (``"openai/whisper-base"``): files that the hub's cache lacks are downloaded, unless ``HF_HUB_OFFLINE`` is set.

        ``model_type`` is a kind (``"text_embedding"``), a modality (``"text"``, ``"vision"``, ``"audio"``) or a family
        (``"bert"``), which the model has to match. ``hardware_preferences["priority_list"]`` lists devices, the best
        first. The model's ``skipped`` has the unavailable devices, each with the reason.
        ``hardware_preferences["precision"]`` is the variant of the model's graphs (``"fp16"``, ``"int8"``, ``"q4"``) or
        its number of bits (16, 8, 4); without it, the first variant that the model has runs. A model without a variant of
        2, 3, 4 or 8 bits is quantized once for all programs of the user, which :func:`.setup_ultra_low_precision` does
        before. With ``"mixed_precision": True``, each matrix has a width of its own, by the errors on the samples in
        ``"calibration"``. After Ctrl-C and a cancellation, that work goes on in a thread until the process ends.

        Raises :class:`NotFoundError` without such a folder or name, :class:`InvalidError` for a model of another type,
        :class:`UnsupportedError` if no preferred device is available, and for an unknown preference or precision.
        """
        return Model(await self._load(model_type, model_name, hardware_preferences), model_name)

    async def _load(
        self, model_type: str, model_name: str, hardware_preferences: Optional[Mapping[str, Any]] = None
    ) -> PooledModel:
        preferences = dict(hardware_preferences or {})
        devices = preferences.pop("priority_list", None)
        precision = preferences.pop("precision", None)
        mixed, calibration = preferences.pop("mixed_precision", False), preferences.pop("calibration", None)
        if preferences:
            unknown = ", ".join(sorted(map(str, preferences)))
            raise UnsupportedError(f"unsupported preference: {unknown}", field="hardware_preferences")
        if devices is not None:
            devices = [devices] if isinstance(devices, str) else [str(device) for device in devices]
        if precision is not None:
            precision = str(precision)
        is_wanted = True

        def load() -> PooledModel:
            folder = self._folder(model_name, precision, mixed)
            return self._pool.get_model(
                model_type, model_name, devices, precision, mixed, calibration, lambda: is_wanted, folder
            )

        try:
            return await asyncio.to_thread(load)
        finally:
            # After Ctrl-C or a cancellation: the end of the loop waits for its threads.
            is_wanted = False

    def _folder(self, name: str, precision: Optional[str], mixed: bool) -> Optional[str]:
        """The folder of a model whose files have come from another node. None if it is found by its name."""
        # Numbers of bits are variants of the graphs, or else made of any.
        variants = [None] if precision is None or mixed else [precision, None] if precision in _BITS else [precision]
        found = _elsewhere.model(self.store, name, self.models, variants)
        return None if found == name else found

    async def share_tensor_between_models(
        self,
        tensor_data: Any,
        tensor_name: str,
        producer_model: str,
        consumer_models: Sequence[str],
        storage_type: str = "cpu",
    ) -> SharedTensor:
        """Publishes an array as ``tensor_name``, with one counted copy, and acquires it for its producer and every consumer.

        Each holds it until it releases the tensor, or ``manager.release_model_tensors(model)`` does. ``storage_type`` is
        ``"cpu"``. A tensor for ``"webgpu"`` or ``"webnn"`` is on the cpu too, with the reason in its ``skipped``; others raise
        :class:`UnsupportedError`.
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
    """A callable model of a pool."""

    def __init__(self, model: PooledModel, name: str) -> None:
        self._model = model
        #: The name of its folder.
        self.name = name

    @property
    def family(self) -> str:
        """The family: ``bert``, ``vit``, …"""
        return self._model.family

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return self._model.device

    @property
    def skipped(self) -> dict[str, str]:
        """The preferred devices that are not available, each with the reason."""
        return dict(self._model.skipped)

    @property
    def tasks(self) -> list[str]:
        """The tasks that it supports."""
        return [name for name, _ in self._model.tasks]

    @property
    def quantization(self) -> Optional[dict[str, Any]]:
        """How its weights were quantized, as ``cotensor quantize --json`` reports it. None for graphs of other programs."""
        return self._model.quantization()

    def is_same_copy(self, other: "Model") -> bool:
        """Whether both objects use one loaded copy."""
        return self._model.is_same_copy(other._model)

    def __call__(self, inputs: Any = None, **more: Any) -> dict[str, Any]:
        """Runs the model on a text, or on a dict (or keywords) of ``text``, ``image``, ``audio``, ``texts``.

        An image is the path or bytes of a file (PNG, JPEG, WebP, BMP), a PIL image, or a uint8 array [height, width, 3]. Audio is
        the path or bytes of a WAV, FLAC, MP3 or Ogg Vorbis file. ``task`` is one of ``tasks``: by default that of the class in
        config.json, else the first one that reads exactly these inputs and needs no head. ``texts`` beside ``text`` mean
        ``rerank``; ``texts`` of one text is the beginning of a caption. With ``chat``, the text is a message for the model's
        chat template. ``head``, ``prompt_name``, ``max_new_tokens``, ``min_new_tokens`` and ``threshold`` are options of the
        task; ``do_sample``, ``temperature``, ``top_k``, ``top_p`` and ``seed`` draw tokens. ``on_text`` is called with each piece
        of a text while it is decoded; ``stream`` gives the pieces as an iterator.

        The result has ``answer``, ``outputs`` (the numbers behind the answer), ``stages`` (which ran and which were reused),
        ``notices``, ``device``, and ``output_tensors``: the stages' outputs by kind, as shared tensors. Waits while
        ``max_connections`` calls of the pool run.
        """
        given = dict(inputs) if isinstance(inputs, Mapping) else {} if inputs is None else {"text": inputs}
        result: dict[str, Any] = self._model.run(as_inputs({**given, **more}), user=self.name)
        result["device"] = self.device
        return result

    def stream(self, inputs: Any = None, **more: Any) -> Generator[str, None, None]:
        """The text of a task that decodes, piece by piece, while it is decoded. Arguments are those of a call.

        A result that another caller has computed comes in one piece. Closing the iterator stops the decoding.
        """
        pieces: queue.SimpleQueue[Union[str, BaseException, None]] = queue.SimpleQueue()
        closed = threading.Event()

        def on_text(piece: str) -> None:
            if closed.is_set():
                raise InterruptedError("the stream was closed")
            pieces.put(piece)

        def run() -> None:
            try:
                self(inputs, on_text=on_text, **more)
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        threading.Thread(target=run, name="cotensor-stream", daemon=True).start()
        try:
            while True:
                piece = pieces.get()
                if piece is None:
                    return
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            closed.set()

    def __repr__(self) -> str:
        return f"<Model {self.name!r}, {self.family} on {self.device}>"


def as_inputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs and options of a call, as the extension reads them. ``imageData`` with ``width`` and ``height`` is an image."""
    found = {name: value for name, value in given.items() if value is not None}
    sides = {name: found.pop(name) for name in ("width", "height") if name in found}
    for side_name, side in sides.items():
        _checks.count(side, side_name, 1)
    size = tuple(sides.values())
    for name in ("imageData", "image_data"):
        if name in found and "image" not in found:
            found["image"] = found.pop(name)
    if size and (len(size) != 2 or "image" not in found):
        raise InvalidError("pass width and height together, with an image", field="width")
    if "image" in found:
        found["image"] = _image(found["image"], size)
    return found


def _image(image: Any, size: tuple[int, ...] = ()) -> Union[str, bytes, tuple[bytes, int, int]]:
    """The path or the bytes of an image file; or pixels with width and height, which ``size`` is for pixels in bytes."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        # A browser's ImageData: rows of red, green, blue and opacity, without a header.
        if size and len(data) in (3 * size[0] * size[1], 4 * size[0] * size[1]):
            return data, size[0], size[1]
        return data
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)
    if hasattr(image, "save") and hasattr(image, "mode"):
        return image.convert("RGB").tobytes(), image.width, image.height
    import numpy

    pixels = numpy.asarray(image)
    if size and pixels.shape[:2] != (size[1], size[0]):
        raise InvalidError(f"the image has shape {list(pixels.shape)}", field="width")
    if pixels.dtype != numpy.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or 0 in pixels.shape:
        message = f"an image is uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}"
        raise InvalidError(message, field="image")
    return pixels.tobytes(), pixels.shape[1], pixels.shape[0]


__all__ = ["Model", "ResourcePoolBridgeIntegration"]
