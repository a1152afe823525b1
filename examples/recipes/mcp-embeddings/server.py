"""An MCP server that searches notes by meaning. All sessions use one model, in the model process of this machine's daemon.

    MODEL=folder NOTES=notes.txt python server.py
"""

import os
from pathlib import Path
from typing import List

from mcp.server import MCPServer

import cotensor

server = MCPServer("notes")
notes = Path(os.environ["NOTES"]).read_text().splitlines()
embedder = cotensor.Embedder(os.environ["MODEL"])
# The first session of the machine computes these rows. The daemon has them for all later ones.
rows = embedder.embed(notes)


@server.tool()
def search(question: str, count: int = 3) -> List[str]:
    """Returns the notes that are closest to a question."""
    scores = rows @ embedder.embed(question)
    return [notes[index] for index in scores.argsort()[::-1][:count]]


if __name__ == "__main__":
    server.run()
