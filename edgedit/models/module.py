"""Networks as trees of modules whose attribute names are the checkpoint's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor, WeightTensor
from edgedit.weights.sharding import Part

if TYPE_CHECKING:
    from edgedit.weights.blocks import WeightBlock

ROLES = ("linear", "conv", "embedding", "norm", "bias", "adapter", "patch")


class Parameter:
    """A named tensor of a checkpoint: its shape, and its role, which decides the type it has in memory.

    Of the roles only "linear" takes the compute type; the others stay f32. A "patch" is a convolution whose stride is
    its kernel: a product of one row a patch, so in memory it is [out, in * kernel * kernel]. `tensor` is set when
    weights are loaded (or, for planning, bound to shapes only). `shape` is that of the checkpoint; `part` says what
    this process holds of it where several share it, None for all.
    """

    def __init__(self, shape: tuple[int, ...], role: str) -> None:
        assert role in ROLES, f"unknown parameter role {role!r}"
        self.shape = shape
        self.role = role
        self.part: Part | None = None
        self.tensor: WeightTensor | None = None

    def on(self, b: GraphBuilder) -> Tensor:
        """The parameter's handle in the graph being built."""
        assert self.tensor is not None, f"parameter of shape {self.shape} has no weights yet"
        return b.parameter(self.tensor)


class Module:
    """Base of layers and networks. Attributes that are parameters, modules or lists of modules are its children;
    None in a list is a filler, for checkpoints that count layers without parameters.

    Calling a module runs `forward` with the names of its tensors prefixed by its own name.
    """

    scope_name = ""
    # of a network: by the module that reads them, weights of which this process keeps a share
    weight_blocks: Mapping[Module, WeightBlock] = MappingProxyType({})

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters below, with their checkpoint keys."""
        for name, child in _children(self):
            if isinstance(child, Parameter):
                yield prefix + name, child
            else:
                yield from child.named_parameters(f"{prefix}{name}.")

    def modules(self) -> Iterator[Module]:
        """This one and all below."""
        yield self
        for _, module in self.named_modules():
            yield module

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """All modules below, with what stands before the checkpoint keys of their parameters."""
        for name, child in _children(self):
            if isinstance(child, Module):
                yield prefix + name, child
                yield from child.named_modules(f"{prefix}{name}.")

    def name_scopes(self) -> None:
        """Tell every module below its name, for the names of its tensors."""
        for name, child in _children(self):
            if isinstance(child, Module):
                child.scope_name = name
                child.name_scopes()

    def forward(self, b: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, b: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
        if not self.scope_name:
            return self.forward(b, *args, **kwargs)
        with b.scope(self.scope_name):
            return self.forward(b, *args, **kwargs)


def _children(module: Module) -> Iterator[tuple[str, Parameter | Module]]:
    for name, value in vars(module).items():
        if isinstance(value, (Parameter, Module)):
            yield name, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, Module):
                    yield f"{name}.{index}", item
