"""Files of ours are those of the safetensors library, whole or merged from shards, but name tensors in model order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.safetensors_stream import (
    DTYPE_NAMES,
    UNNAMED,
    Entry,
    Layout,
    make_layout,
    merge,
    names_in,
    read_layout,
    stream,
)
from pipesvc.wire.tensors import TORCH_DTYPES, element_type_of, tensor_bytes

Tensors = dict[str, torch.Tensor]


def file_of(tensors: Tensors, metadata: dict[str, str] | None = None, chunk_bytes: int = 7) -> bytes:
    layout = make_layout({name: (element_type_of(t), t.shape) for name, t in tensors.items()}, metadata)
    pieces = list(stream(layout, lambda name: tensor_bytes(tensors[name]), chunk_bytes))
    assert all(0 < len(piece) <= chunk_bytes for piece in pieces)
    data = b"".join(pieces)
    assert len(data) == layout.total_bytes
    return data


def content(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A file but for the order of its header."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def model_tensors() -> Tensors:
    torch.manual_seed(0)
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64, torch.uint8, torch.float16]
    tensors = {f"{i}.weight": torch.randn(i + 1, 3).to(kind) for i, kind in enumerate(kinds)}
    return tensors | {"0.bias": torch.randn(()), "9.empty": torch.zeros(0, 4), "ключ": torch.ones(3, dtype=torch.int8)}


def assert_same(got: Tensors, expected: Tensors) -> None:
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
        assert tensor_bytes(got[name]) == tensor_bytes(tensor)


def write_shards(folder: Path, shards: list[Tensors], metadata: dict[str, str] | None = None) -> list[Path]:
    paths = []
    for i, tensors in enumerate(shards):
        path = folder / f"{i}.safetensors"
        path.write_bytes(file_of(tensors, metadata))
        paths.append(path)
    return paths


def test_a_file_is_the_librarys_own_and_loads_with_it() -> None:
    tensors = model_tensors()
    data = file_of(tensors, {"format": "pt"})
    assert content(data) == content(save(tensors, {"format": "pt"}))
    assert names_in(data) == tuple(tensors)
    assert_same(load(data), tensors)


def test_every_element_type_is_named_as_the_library_names_it(tmp_path: Path) -> None:
    for element_type in DTYPE_NAMES:
        tensors = {"x": torch.zeros(2, 3, dtype=TORCH_DTYPES[element_type])}
        data = file_of(tensors)
        assert content(data) == content(save(tensors)), TORCH_DTYPES[element_type]
        path = tmp_path / "x"
        path.write_bytes(data)
        assert_same(load_file(path), tensors)
    everything = {name: torch.ones(3, dtype=TORCH_DTYPES[kind]) for kind, name in DTYPE_NAMES.items()}
    assert content(file_of(everything)) == content(save(everything))


@pytest.mark.parametrize("element_type", sorted(UNNAMED))
def test_types_without_a_name_are_refused_with_the_tensors_name(element_type: int) -> None:
    with pytest.raises(PipesvcError, match=r"3\.weight has the element type complex") as caught:
        make_layout({"3.weight": (element_type, (2,))})
    assert caught.value.code is ErrorCode.INVALID_JOB


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert file_of({}) == save({})
    path = tmp_path / "empty"
    path.write_bytes(file_of({}))
    assert read_layout(path).entries == ()
    assert merge([], tmp_path / "none").total_bytes == 16
    assert load_file(tmp_path / "none") == {}


@pytest.mark.parametrize("num_shards", [1, 2, 3, 10])
def test_merged_shards_equal_one_file(tmp_path: Path, num_shards: int) -> None:
    tensors = model_tensors()
    items = list(tensors.items())
    shards = [dict(items[i::num_shards]) for i in range(num_shards)]
    out = tmp_path / "weights.safetensors"
    layout = merge(write_shards(tmp_path, shards, {"step": "7"}), out)
    assert content(out.read_bytes()) == content(save(tensors, {"step": "7"}))
    assert names_in(out.read_bytes()) == layout.names == tuple(name for shard in shards for name in shard)
    assert layout == read_layout(out)
    assert layout.metadata == {"step": "7"}
    assert_same(load_file(out), tensors)
    assert not list(tmp_path.glob("*.partial"))


def test_tensors_larger_than_a_copy_are_merged(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(700_000, dtype=torch.float32), "b": torch.arange(300_000)}
    out = tmp_path / "weights"
    merge([*write_shards(tmp_path, [])] + [write(tmp_path / name, {name: t}) for name, t in tensors.items()], out)
    assert_same(load_file(out), tensors)


def write(path: Path, tensors: Tensors) -> Path:
    path.write_bytes(save(tensors))
    return path


def test_tied_tensors_are_written_under_each_name(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    paths = write_shards(tmp_path, [{"0.weight": weight, "1.weight": weight}, {"5.weight": weight}])
    out = tmp_path / "weights"
    layout = merge(paths, out)
    assert [(entry.name, entry.shape, entry.element_type) for entry in layout.entries] == [
        (f"{i}.weight", (4, 3), types_pb2.ELEMENT_TYPE_FLOAT32) for i in (0, 1, 5)
    ]
    assert_same(load_file(out), {f"{i}.weight": weight for i in (0, 1, 5)})


def test_a_merge_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    twice = write_shards(tmp_path, [{"w": torch.ones(1)}, {"w": torch.ones(1)}])
    out = tmp_path / "weights"
    with pytest.raises(PipesvcError, match="w is in another file too"):
        merge(twice, out)
    assert sorted(tmp_path.iterdir()) == twice


def test_metadata_that_differs_is_refused(tmp_path: Path) -> None:
    one = write_shards(tmp_path, [{"a": torch.ones(1)}], {"step": "1"})[0].rename(tmp_path / "one")
    two = write_shards(tmp_path, [{"b": torch.ones(1)}], {"step": "2"})[0]
    with pytest.raises(PipesvcError, match="step is '1' in one file and '2' in another"):
        merge([one, two], tmp_path / "weights")


def test_a_layout_that_the_tensors_do_not_fit_is_refused() -> None:
    layout = make_layout({"w": (types_pb2.ELEMENT_TYPE_FLOAT32, (2,))})
    with pytest.raises(PipesvcError, match="4 bytes where 8 were announced"):
        list(stream(layout, lambda name: memoryview(bytes(4))))
    with pytest.raises(PipesvcError, match="it is named __metadata__"):
        make_layout({"__metadata__": (types_pb2.ELEMENT_TYPE_FLOAT32, (2,))})


def test_files_of_other_writers_are_read_in_their_own_order(tmp_path: Path) -> None:
    # Valid, but narrow types first and the entries of the header in another order than the bytes.
    path = tmp_path / "other"
    wide = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    narrow = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    path.write_bytes(raw({"wide": wide, "narrow": narrow}, bytes([1, 2, 3, 4, 0, 0, 128, 63])))
    expected = (
        Entry(name="narrow", element_type=types_pb2.ELEMENT_TYPE_UINT8, shape=(4,), begin=0, end=4),
        Entry(name="wide", element_type=types_pb2.ELEMENT_TYPE_FLOAT32, shape=(1,), begin=4, end=8),
    )
    assert read_layout(path).entries == expected
    merge([path], tmp_path / "merged")
    assert_same(load_file(tmp_path / "merged"), load_file(path))


def raw(document: Any, data: bytes = b"") -> bytes:
    text = document.encode() if isinstance(document, str) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + data


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with the length"),
        (b"\xff" * 8, "does not begin with the length"),
        (raw("{}")[:-1], "the header is cut off"),
        (raw("{"), "malformed"),
        (raw("[]"), "malformed"),
        (raw("[" * 100_000), "malformed"),
        (raw('{"a": 1, "a": 2}'), "a name occurs twice"),
        (raw({"w": 1}), "malformed"),
        (raw({"w": {}}), "malformed"),
        (raw({"w": {**GOOD, "dtype": "F31"}}, bytes(4)), "F31"),
        (raw({"w": {**GOOD, "shape": [-1]}}, bytes(4)), "negative or fractional"),
        (raw({"w": {**GOOD, "shape": [1.0]}}, bytes(4)), "negative or fractional"),
        (raw({"w": {**GOOD, "data_offsets": [0]}}, bytes(4)), "malformed"),
        (raw({"w": GOOD}), "0 bytes of tensors where 4 were announced"),
        (raw({"w": GOOD}, bytes(5)), "5 bytes of tensors where 4 were announced"),
        (raw({"w": {**GOOD, "shape": [2]}}, bytes(4)), "the bytes 0 to 4 do not fit w"),
        (raw({"w": {**GOOD, "data_offsets": [4, 8]}}, bytes(8)), "the bytes 4 to 8 do not fit w"),
        (raw({"w": GOOD, "v": GOOD}, bytes(4)), "the bytes 0 to 4 do not fit"),
        (raw({"__metadata__": {"a": 1}}), "no table of texts"),
        (raw({"__metadata__": []}), "no table of texts"),
    ],
)
def test_malformed_files_are_refused_with_their_path(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(PipesvcError, match=message) as caught:
        read_layout(path)
    assert str(path) in str(caught.value)


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=6), st.tuples(st.sampled_from(sorted(DTYPE_NAMES)), SHAPES), max_size=6))
def test_any_table_of_tensors_is_laid_out_as_the_library_does(
    table: dict[str, tuple[int, tuple[int, ...]]],
) -> None:
    tensors = {name: torch.zeros(shape, dtype=TORCH_DTYPES[kind]) for name, (kind, shape) in table.items()}
    layout: Layout = make_layout(table)
    data = b"".join(stream(layout, lambda name: tensor_bytes(tensors[name])))
    assert content(data) == content(save(tensors))
