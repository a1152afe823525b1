"""From which nodes a node copies a tensor of another one: the trees of cotensor.ray."""

import math
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from cotensor.ray.trees import ANCESTORS, CHAIN_DEPTH, FANOUT, Tree, Trees  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent.parent / "benches"))
from ray_trees import finish_time  # noqa: E402


def children_of(tree):
    found = {}
    for node in tree:
        found.setdefault((tree.ancestors(node) or [None])[0], []).append(node)
    return found


def test_the_first_nodes_are_a_chain_and_more_nodes_are_branches():
    tree = Tree()
    for number in range(CHAIN_DEPTH):
        tree.join(str(number))
        assert tree.ancestors(str(number)) == [str(one) for one in reversed(range(number))]
    tree.join("next")
    assert tree.ancestors("next") == []


def test_nodes_join_with_few_children_and_little_depth():
    for count in (1, 2, 8, 9, 64, 1000):
        tree = Tree()
        for number in range(count):
            tree.join(str(number))
        assert max(map(len, children_of(tree).values())) <= FANOUT
        assert max(len(tree.ancestors(node)) for node in tree) <= max(CHAIN_DEPTH, math.log2(count))


def test_a_member_that_joins_again_keeps_its_place():
    tree = Tree()
    for node in "abc":
        tree.join(node)
    tree.join("b")
    assert tree.ancestors("b") == ["a"] and len(tree) == 3


def test_children_of_a_node_that_leaves_have_its_parent():
    tree = Tree()
    for node in "abc":
        tree.join(node)
    tree.leave("b")
    assert tree.ancestors("c") == ["a"]
    tree.leave("a")
    assert tree.ancestors("c") == []


@pytest.mark.parametrize("seed", range(10))
def test_trees_hold_through_thousands_of_joins_and_leaves(seed):
    chance, tree, expected = random.Random(seed), Tree(), set()
    for _ in range(1000):
        node = str(chance.randrange(40))
        # Phases of growing and of shrinking.
        if node in expected and chance.random() < chance.choice((0.2, 0.8)):
            tree.leave(node)
            expected.remove(node)
        elif node not in expected:
            before = children_of(tree)
            tree.join(node)
            expected.add(node)
            parent = (tree.ancestors(node) or [None])[0]
            assert len(before.get(parent, [])) < FANOUT
        assert set(tree) == expected
        for member in expected:
            ancestors = tree.ancestors(member)
            assert len(set(ancestors)) == len(ancestors) and member not in ancestors and expected.issuperset(ancestors)


def test_nodes_are_told_their_nearest_ancestors():
    trees = Trees()
    told = [trees.join("tensor", b"t", node, node.upper()) for node in "abcd"]
    assert told == [[], ["A"], ["B", "A"], ["C", "B"]] and ANCESTORS == 2
    assert trees.join("other", b"o", "b", "B") == []
    assert trees.join("tensor", b"t", "c", "new") == ["B", "A"]
    assert trees.join("tensor", b"t", "e", "E") == ["D", "new"]


def test_a_member_leaves_with_its_last_token():
    trees = Trees()
    trees.join("tensor", b"1", "a", "A")
    trees.join("tensor", b"2", "a", "A")
    trees.join("tensor", b"2", "b", "B")
    trees.end(b"1")
    assert trees.nodes() == {"a", "b"}
    trees.leave(b"2", "a")
    assert trees.nodes() == {"b"}
    assert trees.join("tensor", b"3", "c", "C") == ["B"]
    trees.retain({"c", "d"})
    assert trees.nodes() == {"c"}
    trees.end(b"3")
    trees.end(b"3")
    trees.leave(b"2", "b")
    assert trees.nodes() == set()


def test_nothing_is_left_of_trees_when_their_tokens_end():
    for seed in range(100):
        chance, trees = random.Random(seed), Trees()
        for _ in range(100):
            token, node = chance.randrange(6), str(chance.randrange(5))
            event = chance.randrange(6)
            if event < 3:
                trees.join(token % 2, bytes([token]), node, node)
            elif event == 3:
                trees.leave(bytes([token]), node)
            elif event == 4:
                trees.end(bytes([token]))
            else:
                trees.retain({str(one) for one in range(5) if one != chance.randrange(5)})
        for token in range(6):
            trees.end(bytes([token]))
        assert [value for value in vars(trees).values() if value == {}] == [{}] * 4, seed


def test_the_time_for_many_nodes_grows_with_their_logarithm():
    """In a simulation, with the rule that agents use."""
    parts, seconds = 128, 1 / 128
    times = {nodes: finish_time(Tree(), nodes, parts, seconds, 0.0005) for nodes in (1, 2, 4, 8, 16, 32, 64)}
    assert times[1] == pytest.approx(1, rel=0.01)
    for nodes, taken in times.items():
        assert taken < 1.1 + 0.35 * math.log2(nodes), times
    assert times[8] < 1.1, "a chain: each link sends one copy"
    assert finish_time(Tree(1 << 30, 0), 8, parts, seconds, 0.0005) == pytest.approx(8, rel=0.01), "all from one"
