"""The same MCP server with a model in each session, loaded by onnxruntime."""

import os
from pathlib import Path
from typing import List

from common.onnx_embedder import OnnxEmbedder
from mcp.server import MCPServer

server = MCPServer("notes")
notes = Path(os.environ["NOTES"]).read_text().splitlines()
embedder = OnnxEmbedder(os.environ["MODEL"])
rows = embedder.embed(notes)


@server.tool()
def search(question: str, count: int = 3) -> List[str]:
    """Returns the notes that are closest to a question."""
    scores = rows @ embedder.embed([question])[0]
    return [notes[index] for index in scores.argsort()[::-1][:count]]


if __name__ == "__main__":
    server.run()
