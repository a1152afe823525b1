"""Functions by attribute, item and iteration."""

from __future__ import annotations

import pytest
from functions_common import providing

from cotensor import NotFoundError
from cotensor.client import SharedTensorClient
from cotensor.functions import RemoteFunction

FUNCTIONS = """
for name in ("names.add", "names.deep.scale", "add_names"):
    provider.share(name=name)(lambda *args: len(args))
"""


@pytest.fixture
def client(daemon):
    with providing(daemon.socket, FUNCTIONS), SharedTensorClient(socket=daemon.socket, retry_count=0) as opened:
        yield opened


def test_functions_can_be_listed_counted_and_found(client):
    names = list(client.functions)
    assert {"names.add", "names.deep.scale", "add_names"} <= set(names) and names == sorted(names)
    assert len(client.functions) == len(names) == len(client.list_functions()) and client.functions
    assert "add_names" in client.functions and "names.add" in client.functions
    for absent in ("add_name", "names", "", 5, None):
        assert absent not in client.functions
    assert client.functions._ipython_key_completions_() == names


def test_only_provided_functions_are_attributes(client):
    for found in (client, client.functions):
        assert hasattr(found, "add_names") and hasattr(found, "names")
        assert not hasattr(found, "add_name") and not hasattr(found, "keys") and not hasattr(found, "_anything")
    assert hasattr(client.names, "deep") and not hasattr(client.names, "sub")
    assert isinstance(client.names.deep.scale, RemoteFunction) and client.names.deep.scale(1, 2) == 2
    assert client.functions["names.add"](1) == client.functions.names.add(1) == 1


def test_wrong_name_raises_with_a_suggestion(daemon, client):
    with pytest.raises(AttributeError, match="did you mean 'add_names'"):
        _ = client.add_nams
    with pytest.raises(AttributeError, match="did you mean 'names.add'"):
        _ = client.names.ad
    with pytest.raises(NotFoundError, match="did you mean 'add_names'"):
        client.functions["ad_names"]
    # A wrong name is an error that retries cannot resolve.
    with SharedTensorClient(socket=daemon.socket, retry_count=100) as retrying:
        with pytest.raises(NotFoundError, match="did you mean 'add_names'"):
            retrying.call_function("add_nams", [1])


def test_completion_lists_the_functions(client):
    assert {"add_names", "names"} <= set(dir(client.functions)) and {"add_names", "call_function"} <= set(dir(client))
    assert dir(client.names) == ["add", "deep"] and dir(client.functions.names.deep) == ["scale"]
    client.close()
    assert "call_function" in dir(client), "a closed client lists its own names"
