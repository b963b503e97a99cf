"""The tensor IR: an immutable, typed, interned dataflow graph with a text form."""

from monograph.ir.dtype import DType, dtype, from_numpy
from monograph.ir.evaluate import evaluate
from monograph.ir.graph import Graph, subgraphs, topological
from monograph.ir.op import (
    Constant,
    Input,
    Item,
    Op,
    Sample,
    Value,
    constant,
    is_finite,
    known,
    sample,
    unpack,
)
from monograph.ir.parse import parse_graph, parse_tensor_type, parse_type
from monograph.ir.text import constants, print_graph
from monograph.ir.traits import Narrowing
from monograph.ir.types import (
    UNKNOWN,
    Array,
    Dim,
    Literal,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    TupleType,
    Type,
    broadcast,
    generalise,
    tensor,
)
from monograph.ir.verify import verify

__all__ = [
    "UNKNOWN",
    "Array",
    "Constant",
    "DType",
    "Dim",
    "Graph",
    "Input",
    "Item",
    "Literal",
    "MapType",
    "Narrowing",
    "Op",
    "OptionalType",
    "Sample",
    "SequenceType",
    "Shape",
    "TensorType",
    "TupleType",
    "Type",
    "Value",
    "broadcast",
    "constant",
    "constants",
    "dtype",
    "evaluate",
    "from_numpy",
    "generalise",
    "is_finite",
    "known",
    "parse_graph",
    "parse_tensor_type",
    "parse_type",
    "print_graph",
    "sample",
    "subgraphs",
    "tensor",
    "topological",
    "unpack",
    "verify",
]
