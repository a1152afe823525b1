"""Executes every code block of the documents and every example of `--help`."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

import pytest
from documents_common import DOCUMENTS, blocks, commands, examples, manifest, part_of, shape, workspace
from functions_common import free_port

LISTED: Dict[str, Dict[str, Any]] = {each["file"]: each for each in manifest()["document"]}
HELP: Dict[str, Dict[str, Any]] = {each["command"]: each for each in manifest()["help"]}


def test_every_block_is_listed():
    for document in DOCUMENTS:
        found = blocks(document)
        listed = LISTED.get(document, {}).get("block", [])
        assert len(found) == len(listed), f"{document} has blocks {[str(block) for block in found]}, listed are {len(listed)}"
        for block, each in zip(found, listed):
            assert block.text.lstrip().startswith(each["starts"]), f"{block} does not start with {each['starts']!r}"
    assert set(LISTED) <= set(DOCUMENTS)


def test_every_example_is_listed():
    with_examples = {command for command in commands() if examples(command)}
    assert with_examples == set(HELP) and len(with_examples) > 5


def documents(largest: Optional[str] = None) -> List[Any]:
    """The documents with blocks whose largest package is this one, so that each is executed in the smallest environment with its
    packages. A document is skipped if a package that it needs is not installed."""
    found = []
    for each in LISTED.values():
        needs = each.get("needs", [])
        if next((name for name in ("ray", "torch") if name in needs), None) != largest:
            continue
        missing = [name for name in needs if not _is_installed(name)]
        skip = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
        found.append(pytest.param(each, id=each["file"], marks=[skip, pytest.mark.timeout(900)]))
    return found


def _is_installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("document", documents())
def test_document(document: Dict[str, Any]):
    execute(document)


@pytest.mark.parametrize("document", documents("torch"))
def test_document_with_torch(document: Dict[str, Any]):
    execute(document)


@pytest.mark.parametrize("document", documents("ray"))
def test_document_with_ray(document: Dict[str, Any]):
    execute(document)


def execute(document: Dict[str, Any]) -> None:
    """Executes the blocks of a document."""
    serve = document.get("serve", [])
    with workspace(document.get("files", []), None if serve is False else serve) as opened:
        if "before" in document:
            opened.shell(document["before"], f"{document['file']}, before its blocks")
        for program in document.get("providers", []):
            opened.provider(program["text"], program["function"])
        earlier, port, output = "", free_port(), ""
        for block, each in zip(blocks(document["file"]), document["block"]):
            text = block.text
            for printed, here in each.get("instead", []):
                assert printed in text, f"{block} does not have {printed!r}"
                text = text.replace(printed, here.format(port=port, http=opened.http))
            if each["run"] == "output":
                assert block.language == "text" and shape(text) == shape(output), f"{block}: the block before printed {output}"
                continue
            output = ""
            if each["run"] == "shell":
                output = opened.shell(each.get("before", "") + text + each.get("then", ""), block)
            elif each["run"] == "python":
                program = (earlier if each.get("continues") else "") + each.get("before", "") + text
                output = opened.python(program + each.get("then", ""), block)
                earlier = program
            elif each["run"] == "provider":
                opened.provider(each.get("before", "") + text + each.get("then", ""), each["function"])
            elif each["run"] == "server":
                opened.server(text, each["function"])
            elif each["run"] == "file":
                (opened.folder / each["name"]).write_text(text)
                output = opened.shell(each["then"], block)
            elif each["run"] == "part":
                assert part_of(text, each["of"]), f"{block} is not a part of {each['of']}"
            else:
                # Another check executes it; `by` names that check.
                assert each["run"] == "elsewhere" and each["by"], f"{block}: {each}"
            assert re.search(each.get("prints", ""), output, re.MULTILINE), f"{block} printed {output}"


@pytest.mark.parametrize("command", sorted(HELP))
def test_help(command: str):
    each = HELP[command]
    with workspace(each.get("files", []), each.get("serve", [])) as opened:
        for program in each.get("providers", []):
            opened.provider(program["text"], program["function"])
        if "before" in each:
            opened.shell(each["before"], f"{command} --help, before its examples")
        lines = examples(command)
        for printed, here in each.get("instead", []):
            assert any(printed in line for line in lines), f"{command} --help does not have {printed!r}"
            lines = [line.replace(printed, here.format(http=opened.http)) for line in lines]
        output = opened.shell("\n".join(lines), f"the examples of {command} --help")
        assert re.search(each.get("prints", ""), output, re.MULTILINE), output
