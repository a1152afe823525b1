"""Python's data model on tensors: numpy's value, or an error that names the call to use."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any, Callable, Dict, Iterator, List

import pytest

import cotensor
from cotensor import Store, Tensor
from cotensor._dtype import DType
from cotensor.sharing import SharedTensor

np = pytest.importorskip("numpy")

# Operators of two operands, with the exponents and shifts that fit.
BINARY = "add sub mul truediv floordiv mod pow eq ne lt le gt ge".split()
BITWISE = "and_ or_ xor lshift rshift".split()
IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift".split()
#: Special methods that answer for a tensor, apart from operators.
OWN = {
    *"__bool__ __bytes__ __complex__ __float__ __format__ __hash__ __index__ __int__ __repr__ __str__".split(),
    *"__contains__ __delitem__ __getitem__ __iter__ __len__ __reversed__ __setitem__".split(),
    *"__array__ __copy__ __deepcopy__ __dlpack__ __dlpack_device__ __enter__ __exit__ __reduce__".split(),
}
#: Special methods of numpy's arrays that a tensor does not have, with the reason.
NOT_OF_A_TENSOR = {
    "__array_finalize__": "of subclasses of ndarray",
    "__array_function__": "numpy converts a tensor by __array__",
    "__array_interface__": "numpy converts a tensor by the buffer protocol or __array__",
    "__array_namespace__": "a tensor has no functions of its own",
    "__array_priority__": "numpy converts a tensor, and the result is numpy's",
    "__array_struct__": "numpy converts a tensor by the buffer protocol or __array__",
    "__array_ufunc__": "numpy converts a tensor by __array__",
    "__array_wrap__": "results are numpy's",
    "__class_getitem__": "tensors are not generic types",
    "__setstate__": "a handle is opened by a function",
}


def name_of(function: str, prefix: str = "") -> str:
    return f"__{prefix}{function.rstrip('_')}__"


@pytest.fixture
def store() -> Iterator[Store]:
    with cotensor.Store() as store:
        yield store


def make_all(store: Store, values: Any) -> List[Any]:
    """A tensor, a view of a tensor, a shared tensor and a view of one with these values."""
    tensor = store.put("x", values)
    twice = store.put("twice", np.stack([values, values]))
    shared = SharedTensor("data model", values.shape, str(values.dtype))
    shared.write(values)
    return [tensor, twice[1], shared, shared.create_view("all", [0] * values.ndim, list(values.shape))]


def test_every_special_method_of_an_array_is_decided() -> None:
    operators = {name_of(name) for name in BINARY + BITWISE + IN_PLACE + ["matmul", "divmod", "neg", "pos", "abs", "invert"]}
    reflected = "add sub mul truediv floordiv mod pow matmul divmod and_ or_ xor lshift rshift".split()
    decided = operators | {name_of(name, "r") for name in reflected} | OWN
    of_objects = set(dir(object))
    # numpy 1 lacks some of its present methods.
    of_arrays = {name for name in dir(np.ndarray) if name.startswith("__")} - of_objects
    assert of_arrays - decided - set(NOT_OF_A_TENSOR) == set()
    assert [name for name in sorted(decided) if not hasattr(Tensor, name)] == []
    assert [name for name in NOT_OF_A_TENSOR if hasattr(Tensor, name)] == []
    inherited = [name for name in sorted(decided) if getattr(Tensor, name) is getattr(object, name, None)]
    assert inherited == ["__str__"], "decided by chance"


@pytest.mark.parametrize("name", BINARY + BITWISE)
def test_binary_operators_are_those_of_numpy(store: Store, name: str) -> None:
    apply: Callable[[Any, Any], Any] = getattr(operator, name)
    values = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    if name not in BITWISE:
        values = values.astype(np.float32)
    for tensor in make_all(store, values):
        for other in (2, np.array([1, 2, 3], values.dtype)):
            for got, wanted in [(apply(tensor, other), apply(values, other)), (apply(other, tensor), apply(other, values))]:
                assert type(got) is np.ndarray and got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(apply(tensor, tensor), apply(values, values))


def test_other_operators_are_those_of_numpy(store: Store) -> None:
    values = np.arange(1, 7, dtype=np.int64).reshape(2, 3)
    for tensor in make_all(store, values):
        for apply in (operator.neg, operator.pos, abs, operator.invert):
            np.testing.assert_array_equal(apply(tensor), apply(values))
        np.testing.assert_array_equal(tensor @ values.T, values @ values.T)
        np.testing.assert_array_equal(values.T @ tensor, values.T @ values)
        for got, wanted in zip(divmod(tensor, 4) + divmod(20, tensor), divmod(values, 4) + divmod(20, values)):
            np.testing.assert_array_equal(got, wanted)
        assert 3 in tensor and 3.5 not in tensor


@pytest.mark.parametrize("name", IN_PLACE)
def test_operators_in_place_are_refused(store: Store, name: str) -> None:
    values = np.ones((2, 2), np.int64)
    tensor = store.put("x", values)
    with pytest.raises(TypeError, match=r"read-only: write into a copy, tensor\.numpy\(\)\.copy\(\)"):
        getattr(operator, name)(tensor, values)
    with pytest.raises(TypeError, match="read-only"):
        tensor[0] = 1
    with pytest.raises(TypeError, match=r"numpy\.delete"):
        del tensor[0]
    np.testing.assert_array_equal(tensor, values)


def test_a_shared_tensor_is_written_in_place_until_it_is_published() -> None:
    shared = SharedTensor("in place", (2,), "float32")
    shared[0] = 3
    before = shared
    shared += 1
    shared *= 2
    assert shared is before and shared.numpy().tolist() == [8.0, 2.0]
    shared.acquire("reader")
    with pytest.raises(TypeError, match="read-only"):
        shared += 1


CONVERSIONS: Dict[Any, List[Any]] = {
    np.uint8: [53],
    np.int64: [4050765991979987505, -3],
    np.float32: [2.75, 0.0],
    np.float16: [1.5],
    np.bool_: [True, False],
}


@pytest.mark.parametrize("dtype", CONVERSIONS, ids=lambda dtype: dtype.__name__)
def test_numbers_are_those_of_the_element(store: Store, dtype: Any) -> None:
    for value in CONVERSIONS[dtype]:
        for shape in ((), (1,), (1, 1)):
            for tensor in make_all(store, np.full(shape, value, dtype)):
                element = np.asarray(value, dtype).item()
                assert (int(tensor), float(tensor), complex(tensor)) == (int(element), float(element), complex(element))
                assert bool(tensor) is (bool(element) or not isinstance(tensor, Tensor))


def test_conversions_of_complex_numbers_are_those_of_numpy(store: Store) -> None:
    tensor = store.put("x", np.array(1 + 2j))
    assert complex(tensor) == 1 + 2j and tensor
    for conversion in (int, float):
        with pytest.raises(TypeError):
            conversion(tensor)


@pytest.mark.parametrize("values", [b"12", b""], ids=["two", "none"])
def test_several_elements_are_not_a_number(store: Store, values: bytes) -> None:
    array = np.frombuffer(values, np.uint8)
    for tensor in make_all(store, array) if values else [store.put("x", array)]:
        for conversion in (int, float, complex):
            with pytest.raises(TypeError, match=rf"{conversion.__name__}\(\) of a tensor of {len(values)} elements"):
                conversion(tensor)
    with pytest.raises(ValueError, match=r"ambiguous: use tensor\.numpy\(\)\.any\(\)"):
        bool(store["x"])


def test_a_tensor_is_no_index_and_no_number_of_bytes(store: Store) -> None:
    tensor = store.put("x", np.array(3, np.uint8))
    with pytest.raises(TypeError, match=r"not an index: use int\(tensor\)"):
        operator.index(tensor)
    with pytest.raises(TypeError, match=r"use int\(tensor\)"):
        [1, 2, 3, 4][tensor]
    assert bytes(tensor) == bytearray(tensor) == b"\x03"
    assert [1, 2, 3, 4][int(tensor)] == 4
    np.testing.assert_array_equal(np.array([5, 6, 7])[store.put("i", np.array([2, 0]))], [7, 5])


def test_a_power_with_a_modulo_is_refused(store: Store) -> None:
    tensor = store.put("x", np.array(2.5))
    for arguments in [(tensor, 2, 5), (2, tensor, 5)]:
        with pytest.raises(TypeError):
            pow(*arguments)
    assert pow(tensor, 2) == 6.25 and 2**tensor == 2**2.5


def test_hashes_are_of_the_object(store: Store) -> None:
    a, b = store.put("a", np.ones(3)), store.put("b", np.ones(3))
    assert {a, b, a} == {a, b} and len({a, b}) == 2
    assert hash(a) == hash(a) and {a: 1}[a] == 1
    assert (a == b).all() and (a == store["a"]).all()
    assert a is not None and not (a == None).any()  # noqa: E711


def test_iteration_gives_views_of_the_first_dimension(store: Store) -> None:
    values = np.arange(6).reshape(2, 3)
    tensor = store.put("x", values)
    assert [row.shape for row in tensor] == [(3,), (3,)]
    assert [int(element) for element in tensor[1]] == [3, 4, 5]
    assert [int(row[0]) for row in reversed(tensor)] == [3, 0]
    assert sum(tensor[0]) == 3
    with pytest.raises(TypeError, match="without dimensions"):
        iter(tensor[0, 0])
    with pytest.raises(TypeError, match="without dimensions"):
        len(tensor[0, 0])


def test_names_are_in_a_group(store: Store) -> None:
    group = store.put_group("g", {"a": np.zeros(2), "b": np.ones(2)})
    assert "a" in group and "c" not in group
    assert 0 not in group and 1.0 not in group and None not in group


def test_format_is_that_of_the_number(store: Store) -> None:
    tensor = store.put("x", np.array([1.5, 2.25]))
    assert f"{tensor[1]:.1f} {tensor[0]:g}" == "2.2 1.5"
    assert f"{tensor}" == str(tensor) == repr(tensor)
    with pytest.raises(TypeError, match="a tensor of 1 dimensions has no format"):
        f"{tensor:.2f}"


def test_copies_are_leases_of_their_own(store: Store) -> None:
    tensor = store.put("x", np.arange(4.0))
    for copied in (copy.copy(tensor[1:]), copy.deepcopy({"x": tensor})["x"][1:]):
        assert copied.numpy().tolist() == [1.0, 2.0, 3.0]
    kept = copy.copy(tensor)
    tensor.release()
    del store["x"]
    assert kept.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(cotensor.errors.ConflictError, match="released"):
        tensor.__eq__(1)


def test_a_dtype_equals_the_dtypes_of_numpy(store: Store) -> None:
    tensor = store.put("x", np.ones(2))
    assert tensor.dtype == np.float64 == tensor.dtype == np.dtype("float64") == tensor.dtype == float
    assert tensor.dtype == "float64" and {tensor.dtype: 1}["float64"] == 1 and f"{tensor.dtype}" == "float64"
    assert tensor.dtype != np.float32 and tensor.dtype != np.dtype(">f8") and tensor.dtype != "float32"
    assert not tensor.dtype == None and not tensor.dtype == 64  # noqa: E711
    assert pickle.loads(pickle.dumps(tensor.dtype)) == np.float64
    assert store.put("b", np.array([True])).dtype == np.bool_ == store["b"].dtype == bool
    assert np.zeros(2, tensor.dtype).dtype == np.float64
    for other in (SharedTensor("dtype", (2,), "int16"), store.empty("e", (2,), "int16")):
        assert other.dtype == np.int16 and type(other.dtype) is DType


def test_a_dtype_equals_scalar_types_and_no_other_classes() -> None:
    kinds = {"int64": (np.longlong, np.intp, np.int64, int), "uint64": (np.ulonglong, np.uintp), "bool": (np.bool_, bool)}
    for name, equal in kinds.items():
        assert [kind for kind in equal if np.dtype(name) == kind and DType(name) != kind] == []
    unrelated: Any = type("float32", (), {})
    assert DType("float32") != unrelated and DType("float32") != np.floating
    unhashable = type("unhashable", (type,), {"__eq__": lambda *_: NotImplemented, "__hash__": None})
    assert DType("float32") != unhashable("float32", (), {})


def test_kind_of_a_dtype_is_that_of_numpy(store: Store) -> None:
    for name in "bool uint8 int8 int64 float16 float64 complex64".split():
        assert store.empty(name, (2,), name).dtype.kind == np.dtype(name).kind
    assert [DType(name).kind for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")] == ["f"] * 3
