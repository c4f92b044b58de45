"""Inputs that are looked at: sizes of what is computed with, values of what is decided by."""

from __future__ import annotations

import pytest
import torch

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2
from pipesvc.wire import samples
from pipesvc.wire.tensors import TORCH_DTYPES


def test_whole_numbers_keep_their_values_and_others_their_sizes() -> None:
    value = {
        "ids": torch.arange(6).view(2, 3),
        "pair": (torch.tensor([True, False]), torch.rand(4, 5, dtype=torch.bfloat16)),
        "rest": [None, 3, 0.5, "text", torch.empty(0, 2)],
    }
    sample = samples.encode(value)
    assert sample.ByteSize() < 400
    found = samples.decode(job_pb2.Sample.FromString(sample.SerializeToString()))
    assert torch.equal(found["ids"], value["ids"])  # type: ignore[arg-type]
    assert found["pair"][0].tolist() == [True, False]
    assert (found["pair"][1].shape, found["pair"][1].dtype) == ((4, 5), torch.bfloat16)
    assert not found["pair"][1].any()
    assert found["rest"][:4] == [None, 3, 0.5, "text"]
    assert found["rest"][4].shape == (0, 2)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", TORCH_DTYPES.values())
def test_every_type_travels(dtype: torch.dtype) -> None:
    found = samples.decode(samples.encode(torch.zeros(3).to(dtype)))
    assert (found.dtype, found.shape) == (dtype, (3,))


def test_large_tables_of_numbers_go_as_their_sizes_and_large_ones_of_whole_numbers_are_refused() -> None:
    num_values = samples.MAX_SAMPLE_BYTES + 1
    assert samples.encode(torch.empty(num_values)).ByteSize() < 100
    samples.encode(torch.zeros(samples.MAX_SAMPLE_BYTES, dtype=torch.uint8))
    with pytest.raises(PipesvcError, match=r"have 8388609 bytes, at most 8388608 .* more micro-batches"):
        samples.encode(torch.zeros(num_values, dtype=torch.uint8))


@pytest.mark.parametrize(
    "sample",
    [
        job_pb2.Sample(structure="[]"),
        job_pb2.Sample(structure='["tensor"]'),
        job_pb2.Sample(structure='["tensor"]', tensors=[job_pb2.SampleTensor(element_type=99)]),  # type: ignore[arg-type]
        job_pb2.Sample(
            structure='["tensor"]',
            tensors=[
                job_pb2.SampleTensor(
                    element_type=samples.encode(torch.ones(1, dtype=torch.int64)).tensors[0].element_type, shape=[2]
                )
            ],
        ),
    ],
    ids=["nothing", "no tensor", "no type", "too few bytes"],
)
def test_what_no_client_writes_is_refused(sample: job_pb2.Sample) -> None:
    with pytest.raises(PipesvcError) as caught:
        samples.decode(sample)
    assert caught.value.code is ErrorCode.BAD_FRAME
