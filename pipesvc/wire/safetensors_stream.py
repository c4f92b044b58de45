"""Weights files in the safetensors format, written and merged as streams.

The safetensors library wants all tensors in memory; a run's weights are held by many processes, and the coordinator,
which puts them together, must neither import torch nor hold a model. Each stage streams a file of its own, and `merge`
copies byte ranges into one. The format: 8 bytes with the header's length (little endian), a JSON header padded with
spaces to a multiple of 8, then the tensors without gaps. They lie as the library puts them: widest element types first,
so that each tensor is aligned, and by name among equals. The header names them in the order of the state dict, which
the library does not keep; so what a client gets is in the order of the model.
Tensors that share memory are written once per name, for the format has no aliases.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import element_name, total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

MAX_HEADER_BYTES: Final = 100_000_000  # the library's own limit
COPY_BYTES: Final = 1 << 20
_METADATA: Final = "__metadata__"

# In the order of the file. Total over ElementType together with UNNAMED: a test walks the enum.
DTYPE_NAMES: Final[dict[int, str]] = {
    types_pb2.ELEMENT_TYPE_UINT64: "U64",
    types_pb2.ELEMENT_TYPE_INT64: "I64",
    types_pb2.ELEMENT_TYPE_FLOAT64: "F64",
    types_pb2.ELEMENT_TYPE_COMPLEX64: "C64",
    types_pb2.ELEMENT_TYPE_FLOAT32: "F32",
    types_pb2.ELEMENT_TYPE_UINT32: "U32",
    types_pb2.ELEMENT_TYPE_INT32: "I32",
    types_pb2.ELEMENT_TYPE_BFLOAT16: "BF16",
    types_pb2.ELEMENT_TYPE_FLOAT16: "F16",
    types_pb2.ELEMENT_TYPE_UINT16: "U16",
    types_pb2.ELEMENT_TYPE_INT16: "I16",
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2FNUZ: "F8_E5M2FNUZ",
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FNUZ: "F8_E4M3FNUZ",
    types_pb2.ELEMENT_TYPE_FLOAT8_E8M0FNU: "F8_E8M0",
    types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FN: "F8_E4M3",
    types_pb2.ELEMENT_TYPE_FLOAT8_E5M2: "F8_E5M2",
    types_pb2.ELEMENT_TYPE_INT8: "I8",
    types_pb2.ELEMENT_TYPE_UINT8: "U8",
    types_pb2.ELEMENT_TYPE_BOOL: "BOOL",
}
UNNAMED: Final = frozenset({types_pb2.ELEMENT_TYPE_COMPLEX128, types_pb2.ELEMENT_TYPE_COMPLEX32})
_RANK_OF_TYPE: Final = {element_type: rank for rank, element_type in enumerate(DTYPE_NAMES)}
_TYPE_OF_NAME: Final = {name: element_type for element_type, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One tensor of a file. `begin` and `end` count bytes from the end of the header."""

    name: str
    element_type: int
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A file without its tensors' bytes: `header` are its first bytes, then come the entries in this order.

    `names` are the same tensors in the order of the model.
    """

    header: bytes
    entries: tuple[Entry, ...]
    names: tuple[str, ...]
    metadata: dict[str, str]

    @property
    def total_bytes(self) -> int:
        return len(self.header) + (self.entries[-1].end if self.entries else 0)


def make_layout(tensors: Mapping[str, tuple[int, Sequence[int]]], metadata: Mapping[str, str] | None = None) -> Layout:
    """Lay out tensors given as name -> (element type, shape), in the order of the model."""
    for name, (element_type, _) in tensors.items():
        if element_type not in DTYPE_NAMES:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"{name} has the element type {element_name(element_type)}, which a safetensors file cannot hold",
                advice="Keep parameters and buffers in another type.",
            )
    entries: dict[str, Entry] = {}
    end = 0
    for name in sorted(tensors, key=lambda name: (_RANK_OF_TYPE[tensors[name][0]], name)):
        element_type, shape = tensors[name]
        begin, end = end, end + total_bytes(element_type, shape)
        entries[name] = Entry(name=name, element_type=element_type, shape=tuple(shape), begin=begin, end=end)
    document: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    if _METADATA in tensors:
        _refuse("a tensor", f"it is named {_METADATA}")
    for name in tensors:
        entry = entries[name]
        offsets = [entry.begin, entry.end]
        document[name] = {
            "dtype": DTYPE_NAMES[entry.element_type],
            "shape": list(entry.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return Layout(
        header=len(text).to_bytes(8, "little") + text,
        entries=tuple(entries.values()),
        names=tuple(tensors),
        metadata=dict(metadata or {}),
    )


def names_in(header: bytes) -> tuple[str, ...]:
    """The names of a file's tensors in the order of the model; `header` may have more of the file behind it."""
    num_bytes = int.from_bytes(header[:8], "little")
    return tuple(name for name in json.loads(header[8 : 8 + num_bytes]) if name != _METADATA)


def stream(
    layout: Layout, bytes_of: Callable[[str], memoryview], chunk_bytes: int = COPY_BYTES
) -> Iterator[bytes | memoryview]:
    """The file in pieces of at most `chunk_bytes`; a tensor's bytes are asked for when its turn comes."""
    yield from _pieces(memoryview(layout.header), chunk_bytes)
    for entry in layout.entries:
        data = bytes_of(entry.name)
        if len(data) != entry.end - entry.begin:
            _refuse(entry.name, f"{len(data)} bytes where {entry.end - entry.begin} were announced")
        yield from _pieces(data, chunk_bytes)


def read_layout(path: Path) -> Layout:
    """Read and check the header of a file, against the file's size too."""
    with path.open("rb") as file:
        return _read_layout(file, str(path))


def merge(paths: Sequence[Path], out_path: Path) -> Layout:
    """Put the tensors of several files into one, which appears whole or not at all."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        layouts = [_read_layout(file, str(path)) for file, path in zip(files, paths, strict=True)]
        merged = make_layout(_union(layouts, paths), _union_of_metadata(layouts))
        places = {
            entry.name: (file, len(layout.header) + entry.begin)
            for file, layout in zip(files, layouts, strict=True)
            for entry in layout.entries
        }
        partial = out_path.with_name(out_path.name + ".partial")
        try:
            with partial.open("wb") as out:
                out.write(merged.header)
                for entry in merged.entries:
                    file, begin = places[entry.name]
                    _copy(file, begin, entry.end - entry.begin, out)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(out_path)
        finally:
            partial.unlink(missing_ok=True)
    return merged


def _union(layouts: Sequence[Layout], paths: Sequence[Path]) -> dict[str, tuple[int, tuple[int, ...]]]:
    tensors: dict[str, tuple[int, tuple[int, ...]]] = {}
    for layout, path in zip(layouts, paths, strict=True):
        entries = {entry.name: entry for entry in layout.entries}
        for name in layout.names:
            if name in tensors:
                _refuse(str(path), f"{name} is in another file too")
            tensors[name] = (entries[name].element_type, entries[name].shape)
    return tensors


def _union_of_metadata(layouts: Sequence[Layout]) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for layout in layouts:
        for key, value in layout.metadata.items():
            if metadata.setdefault(key, value) != value:
                _refuse("metadata", f"{key} is {metadata[key]!r} in one file and {value!r} in another")
    return metadata


def _copy(file: BinaryIO, begin: int, num_bytes: int, out: BinaryIO) -> None:
    file.seek(begin)
    while num_bytes:
        data = file.read(min(COPY_BYTES, num_bytes))
        if not data:
            _refuse(file.name, "it ended while it was read")
        out.write(data)
        num_bytes -= len(data)


def _pieces(data: memoryview, chunk_bytes: int) -> Iterator[memoryview]:
    for begin in range(0, len(data), chunk_bytes):
        yield data[begin : begin + chunk_bytes]


def parse_layout(header: bytes, total_bytes_of_file: int, name: str) -> Layout:
    """Check a header, with its length before it, against the size of its file."""
    num_bytes = int.from_bytes(header[:8], "little")
    if len(header) < 8 or num_bytes > MAX_HEADER_BYTES:
        _refuse(name, "it does not begin with the length of a header")
    text = header[8 : 8 + num_bytes]
    if len(text) < num_bytes:
        _refuse(name, "the header is cut off")
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
        metadata = document.pop(_METADATA, {})
        tensors = {key: _entry(key, fields) for key, fields in document.items()}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        _refuse(name, f"the header is malformed: {error!r}")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(name, "the metadata is no table of texts")
    entries = tuple(sorted(tensors.values(), key=lambda entry: (entry.begin, entry.end)))
    end = 0
    for entry in entries:
        if entry.begin != end or entry.end - end != total_bytes(entry.element_type, entry.shape):
            _refuse(name, f"the bytes {entry.begin} to {entry.end} do not fit {entry.name}")
        end = entry.end
    actual = total_bytes_of_file - 8 - num_bytes
    if actual != end:
        _refuse(name, f"{actual} bytes of tensors where {end} were announced")
    return Layout(header=header[: 8 + num_bytes], entries=entries, names=tuple(tensors), metadata=metadata)


def _read_layout(file: BinaryIO, name: str) -> Layout:
    prefix = file.read(8)
    text = file.read(min(int.from_bytes(prefix, "little"), MAX_HEADER_BYTES + 1))
    return parse_layout(prefix + text, os.fstat(file.fileno()).st_size, name)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _entry(name: str, fields: Any) -> Entry:
    begin, end = fields["data_offsets"]
    shape = tuple(fields["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"negative or fractional numbers in {name}")
    return Entry(name=name, element_type=_TYPE_OF_NAME[fields["dtype"]], shape=shape, begin=begin, end=end)


def _refuse(name: str, problem: str) -> NoReturn:
    raise PipesvcError(ErrorCode.INTERNAL, f"{name} cannot be read or made as safetensors: {problem}")
