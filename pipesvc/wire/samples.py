"""Inputs of one micro-batch as a message, to be looked at: what a model's forward would be given, without its numbers.

To follow a forward takes the sizes of its inputs, and values only of whole numbers and truths, for code may depend on
those. So floating-point tensors, which are most of the bytes, go as their sizes, and become zeros.
"""

from __future__ import annotations

from typing import Any, Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2

# Of all tensors together: it goes to the coordinator's journal, and to each worker that inspects.
MAX_SAMPLE_BYTES: Final = 8 << 20


def encode(value: Any) -> job_pb2.Sample:
    """Refuses what cannot travel, and whole numbers of more than `MAX_SAMPLE_BYTES`."""
    import torch  # late: the coordinator reads the limit alone

    from pipesvc.wire import tensors, tree

    structure, leaves = tree.flatten(value, lambda leaf: isinstance(leaf, torch.Tensor))
    with_values = [not (leaf.is_floating_point() or leaf.is_complex()) for leaf in leaves]
    num_bytes = sum(tensors.num_bytes(leaf) for leaf, has_values in zip(leaves, with_values, strict=True) if has_values)
    if num_bytes > MAX_SAMPLE_BYTES:
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the whole numbers of its first micro-batch have {num_bytes} bytes, at most {MAX_SAMPLE_BYTES} are looked "
            "at",
            advice="Use more micro-batches",
        )
    sample = job_pb2.Sample(structure=structure)
    for leaf, has_values in zip(leaves, with_values, strict=True):
        sample.tensors.add(
            element_type=tensors.element_type_of(leaf),
            shape=leaf.shape,
            data=bytes(tensors.tensor_bytes(leaf)) if has_values else b"",
        )
    return sample


def decode(sample: job_pb2.Sample) -> Any:
    """What `encode` was given, with zeros in its floating-point tensors; BAD_FRAME for anything else."""
    import torch

    from pipesvc.wire import tensors, tree

    leaves = []
    for each in sample.tensors:
        dtype = tensors.torch_dtype(each.element_type)
        if dtype.is_floating_point or dtype.is_complex:
            # One zero, however large the sizes say that it is.
            leaves.append(torch.zeros((), dtype=dtype).expand(tuple(each.shape)))
        else:
            leaves.append(tensors.from_buffer(memoryview(each.data), each.element_type, tuple(each.shape)))
    return tree.unflatten(sample.structure, leaves)
