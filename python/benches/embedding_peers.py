"""What programs use for embeddings today: onnxruntime with a tokenizer, fastembed, and servers in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

#: A process with a model of its own, as a worker of a web server has.
ONNXRUNTIME = """
import sys
import numpy, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
session = onnxruntime.InferenceSession(sys.argv[1] + "/onnx/model.onnx", providers=["CPUExecutionProvider"])
encoded = tokenizer.encode("a text")
session.run(None, {
    "input_ids": numpy.array([encoded.ids]),
    "attention_mask": numpy.array([encoded.attention_mask]),
    "token_type_ids": numpy.array([encoded.type_ids]),
})
print("ready", flush=True)
sys.stdin.read()
"""

#: The least that a server does: it reads a request and sends an answer of the size of one embedding.
ECHO = """
import asyncio
ANSWER = b"x" * 4000
async def answer(reader, writer):
    writer.transport.set_write_buffer_limits(0)
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(ANSWER) + ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

#: fastembed with a model of its own. `specific_model_path` is a folder, so nothing is downloaded.
_FASTEMBED = """
import sys
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(
    "local/model", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="local/model"), dim=384
)
model = TextEmbedding("local/model", specific_model_path=sys.argv[1], threads=1)
"""

#: A process with a model of fastembed, as a worker of a web server has.
FASTEMBED = f"""{_FASTEMBED}
list(model.embed(["a text"]))
print("ready", flush=True)
sys.stdin.read()
"""

_SENTENCE_TRANSFORMERS = """
import sys
import torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
model = SentenceTransformer(sys.argv[1] + "/torch", device="cpu")
"""


def _server(load: str, encode: str) -> str:
    """As tutorials write it: each request encodes its texts."""
    return f"""{load}
import socket
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
app = FastAPI()
class Request(BaseModel):
    model: str
    input: str
@app.post("/v1/embeddings")
def embeddings(request: Request):
    row = {encode}.tolist()
    return {{"object": "list", "model": request.model, "data": [{{"object": "embedding", "index": 0, "embedding": row}}]}}
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])
"""


#: Servers in Python, by name. The argument is the folder of the model.
SERVERS = {
    "FastAPI and fastembed": _server(_FASTEMBED, "next(iter(model.embed([request.input])))"),
    "FastAPI and sentence-transformers": _server(_SENTENCE_TRANSFORMERS, "model.encode(request.input, show_progress_bar=False)"),
}


class Engine:
    """The model in this process, with one thread: tokenizer, graph, mean of the tokens, length 1."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "onnx/model.onnx"), options, providers=["CPUExecutionProvider"])

    def embed(self, texts: List[str]) -> Any:
        import numpy as np

        encoded = self.tokenizer.encode_batch(texts)
        ids, mask = np.array([each.ids for each in encoded]), np.array([each.attention_mask for each in encoded])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self.session.run(None, inputs)[0]
        kept = mask[:, :, None].astype(np.float32)
        rows = (hidden * kept).sum(1) / kept.sum(1)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
