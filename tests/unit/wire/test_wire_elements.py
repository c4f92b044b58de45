"""The element tables are total: each walks the enum of the contract."""

from __future__ import annotations

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.elements import ELEMENT_BYTES, check_element_type, element_name, total_bytes
from pipesvc.wire.safetensors_stream import DTYPE_NAMES, UNNAMED

ALL_TYPES = set(types_pb2.ElementType.values()) - {types_pb2.ELEMENT_TYPE_UNSPECIFIED}


def test_every_element_type_has_a_size() -> None:
    assert set(ELEMENT_BYTES) == ALL_TYPES


def test_every_element_type_has_a_safetensors_name_or_is_known_to_have_none() -> None:
    assert set(DTYPE_NAMES) | UNNAMED == ALL_TYPES
    assert not set(DTYPE_NAMES) & UNNAMED
    assert len(set(DTYPE_NAMES.values())) == len(DTYPE_NAMES)


def test_widest_types_come_first_in_a_file_so_that_each_tensor_is_aligned() -> None:
    # A complex number is aligned as its two halves are.
    halves = {types_pb2.ELEMENT_TYPE_COMPLEX64}
    sizes = [ELEMENT_BYTES[kind] for kind in DTYPE_NAMES if kind not in halves]
    assert sizes == sorted(sizes, reverse=True)


def test_names_and_sizes() -> None:
    assert element_name(types_pb2.ELEMENT_TYPE_FLOAT8_E4M3FN) == "float8_e4m3fn"
    assert total_bytes(types_pb2.ELEMENT_TYPE_FLOAT64, (2, 3)) == 48
    assert total_bytes(types_pb2.ELEMENT_TYPE_FLOAT64, ()) == 8
    assert total_bytes(types_pb2.ELEMENT_TYPE_FLOAT64, (2, 0)) == 0


@pytest.mark.parametrize("number", [0, 22, 99, -1])
def test_n29_an_unknown_number_is_refused_by_that_number(number: int) -> None:
    with pytest.raises(PipesvcError, match="unknown element type") as caught:
        check_element_type(number)
    assert caught.value.code is ErrorCode.BAD_FRAME
    if number:
        assert f"number {number}" in str(caught.value)
