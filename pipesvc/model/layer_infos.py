"""What is said of a layer, or of a unit of a module, without building it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from pipesvc.core.layer_info import LayerInfo, SharedParameter


def layer_info(name: str, layer: nn.Module, mark: str, counted: set[int]) -> LayerInfo:
    """`counted` are the ids of the parameters of the layers before: one that is shared is there once."""
    parameters = [each for each in layer.parameters() if id(each) not in counted]
    counted.update(map(id, parameters))
    sparse = {id(each) for each in sparse_parameters(layer)}
    return LayerInfo(
        name=name,
        type=type(layer).__name__,
        mark=mark,
        parameter_bytes=_num_bytes(parameters),
        buffer_bytes=_num_bytes(layer.buffers()),
        gradient_bytes=_num_bytes(each for each in parameters if each.requires_grad and id(each) not in sparse),
    )


def shared_parameter(name: str, parameter: nn.Parameter) -> SharedParameter:
    return SharedParameter(name=name, num_bytes=_num_bytes([parameter]), is_trained=parameter.requires_grad)


def sparse_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that may have sparse gradients: of tables made with sparse=True."""
    tables = [each for each in module.modules() if getattr(each, "sparse", False)]
    return [parameter for table in tables for parameter in table.parameters(recurse=False)]


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
