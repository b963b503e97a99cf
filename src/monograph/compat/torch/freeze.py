"""The form of a graph of torch's compiler that is exported.

torch passes parameters, sizes and Python floats as inputs of a graph. `classify` tells them apart;
`frozen_module` is the graph with parameters and numbers as constants and sizes read off tensors, so
that only the caller's tensors and integers are left as inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

_version_of = attrgetter("_version")


@dataclass(frozen=True)
class GraphInputs:
    """The placeholders of a graph by what they hold, as positions among its arguments."""

    parameters: tuple[int, ...]
    """Parameters and buffers of modules."""
    numbers: tuple[int, ...]
    """Python floats, which torch passes as tensors without axes."""
    sizes: Mapping[int, tuple[int, int]]
    """Sizes of tensors: the position of the tensor, and the axis."""
    integers: tuple[int, ...]
    """Integers that are no size of a tensor."""
    tensors: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The positions of the inputs of the frozen module, in order."""
        return tuple(sorted((*self.integers, *self.tensors)))


def classify(graph: Graph) -> GraphInputs:
    """Return what the placeholders of a graph hold."""
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    parameters, numbers, integers, tensors = [], [], [], []
    sizes: dict[int, tuple[int, int]] = {}
    known = _symbols(nodes)
    for position, node in enumerate(nodes):
        example, argument = node.meta.get("example_value"), node.meta.get("grapharg")
        if isinstance(example, (torch.SymInt, int)):
            if str(example) in known:
                sizes[position] = known[str(example)]
            else:
                integers.append(position)
        elif argument is not None and argument.pass_arg_as_tensor:
            numbers.append(position)
        elif "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {}):
            parameters.append(position)
        else:
            tensors.append(position)
    return GraphInputs(tuple(parameters), tuple(numbers), sizes, tuple(integers), tuple(tensors))


def _symbols(nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """Return where each symbolic size can be read: the position of a tensor, and the axis."""
    found: dict[str, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            for axis, size in enumerate(example.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(size), (position, axis))
    return found


def open_axes(graph: Graph) -> list[Any]:
    """Return the dynamic shape of every placeholder, as `torch.export` takes it."""
    found: list[Any] = []
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            sizes = enumerate(example.shape)
            axes = {a: torch.export.Dim.AUTO for a, s in sizes if isinstance(s, torch.SymInt)}
            found.append(axes or None)
        else:
            found.append(torch.export.Dim.DYNAMIC if isinstance(example, torch.SymInt) else None)
    return found


def result_nodes(graph: Graph) -> list[Any]:
    """Return the results of a graph: nodes, and constants."""
    (output,) = (n for n in graph.nodes if n.op == "output")
    return list(output.args[0])


def views_of_inputs(graph: Graph) -> list[int]:
    """Return the positions of results that share memory with an input: views and inputs."""
    owners = {_storage(n) for n in graph.nodes if n.op == "placeholder"} - {None}
    results = result_nodes(graph)
    return [i for i, n in enumerate(results) if isinstance(n, Node) and _storage(n) in owners]


def shared_results(graph: Graph) -> dict[int, Node]:
    """Return the results that are views of another tensor of the graph, with this tensor.

    Only results that share memory with each other count: nobody sees that memory else.
    """
    owners: dict[Any, Node] = {}
    for node in graph.nodes:
        owners.setdefault(_storage(node), node)
    groups: dict[Any, list[int]] = {}
    results = result_nodes(graph)
    inputs = {_storage(n) for n in graph.nodes if n.op == "placeholder"}
    for position, node in enumerate(results):
        if isinstance(node, Node) and (memory := _storage(node)) is not None:
            groups.setdefault(memory, []).append(position)
    return {
        i: owners[memory]
        for memory, positions in groups.items()
        if memory not in inputs and len({results[i] for i in positions}) > 1
        for i in positions
        if results[i] is not owners[memory]
    }


def is_written(node: Node) -> bool:
    """Return True if the graph writes to the memory of a tensor after it has been made."""
    return int(_version_of(node.meta["example_value"])) > 0


def _storage(node: Node) -> Any:
    """Return what identifies the memory of a node's value; None if it is no tensor."""
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        return None
    return torch.multiprocessing.reductions.StorageWeakRef(example.untyped_storage()).cdata


def frozen_module(
    module: GraphModule,
    inputs: GraphInputs,
    args: Sequence[Any],
    wanted: Iterable[Node],
    *,
    pure: bool = False,
    given: Sequence[Node] = (),
) -> GraphModule:
    """Return a module of the graph with these arguments frozen, that returns some nodes.

    pure: the graph is known to write to nothing, so that ops without a user may go.
    given: nodes whose values are passed, after the arguments.
    """
    graph, holder = Graph(), {}
    nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
    made: dict[Node, Any] = {nodes[i]: graph.placeholder(nodes[i].name) for i in inputs.kept}
    made |= {n: graph.placeholder(f"given_{i}") for i, n in enumerate(given)}
    numbers = {nodes[i]: args[i].item() for i in inputs.numbers}
    for position in (*inputs.parameters, *inputs.numbers):
        name = f"frozen_{nodes[position].name.strip('_')}"
        holder[name] = args[position].detach()
        made[nodes[position]] = graph.get_attr(name)
    for position, (tensor, axis) in inputs.sizes.items():
        made[nodes[position]] = graph.call_method("size", (made[nodes[tensor]], axis))
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or node in given:
            continue
        if node.op == "call_method" and node.target == "item" and node.args[0] in numbers:
            made[node] = numbers[node.args[0]]
        else:
            made[node] = graph.node_copy(node, lambda n: made[n])
        if node.op in ("get_attr", "call_module"):
            holder[node.target] = attrgetter(node.target)(module)
    graph.output(tuple(made[n] for n in wanted))
    if pure:
        graph.eliminate_dead_code()
    return GraphModule(holder, graph)


@dataclass(frozen=True)
class Stamp:
    """A tensor as it was when it was frozen; it is valid while nothing has written to it."""

    tensor: Any
    version: int
    address: int

    @staticmethod
    def of(tensor: Any) -> Stamp:
        return Stamp(tensor, _version(tensor), tensor.data_ptr())

    def holds(self, tensor: Any) -> bool:
        """Return True if a tensor is this one, unchanged."""
        return (
            tensor is self.tensor
            and _version(tensor) == self.version
            and tensor.data_ptr() == self.address
        )


def _version(tensor: Any) -> int:
    # Tensors of inference mode have no count of writes; nothing may write to them outside of it.
    return -1 if tensor.is_inference() else int(_version_of(tensor))
