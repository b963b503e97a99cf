"""Inputs and outputs of a GPU session: torch tensors beside numpy arrays.

Feeds are checked by arrays that stand for tensors: of the same type and shape, without memory.
Other checks say why a tensor of the caller cannot be used as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monograph.errors import FeedError
from monograph.ir import DType, dtype
from monograph.runtime.executable import Feeds, Outputs, WrappedExecutable
from monograph.runtime.feeds import Port, is_foreign
from monograph.runtime.gpu.bound_program import VECTOR, DevicePort
from monograph.runtime.gpu.tensors import from_numpy, is_plain, raw, torch_type
from monograph.runtime.outputs import NOTHING, check_mapping, check_out, fits_shape

if TYPE_CHECKING:
    from monograph.runtime.dynamic.staged import StagedExecutable


_NAMES = (
    *("bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"),
    *("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"),
)
_DTYPES: dict[torch.dtype, DType] = {torch_type(dtype(n)): dtype(n) for n in _NAMES}


def tensors_in(feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the torch tensors among some feeds."""
    return {n: x for n, x in feeds.items() if isinstance(x, torch.Tensor)}


def stand_ins(feeds: Mapping[str, Any], limit: int = -1) -> dict[str, Any]:
    """Return the feeds with arrays in place of tensors; small integers with their values."""
    return {
        n: _stand_in(n, x, limit) if isinstance(x, torch.Tensor) else x for n, x in feeds.items()
    }


def _stand_in(name: str, tensor: torch.Tensor, limit: int) -> Any:
    kind = _DTYPES.get(tensor.dtype)
    if kind is None:
        raise FeedError(f"{name}: torch tensors of {tensor.dtype} are not taken")
    if tensor.ndim <= 1 and tensor.numel() <= limit and kind.numpy.kind in "iub":
        return to_host(tensor)
    return np.broadcast_to(np.zeros((), kind.numpy), tuple(tensor.shape))


def to_host(tensor: torch.Tensor) -> Any:
    """Wait for the device and return a tensor as an array on the host."""
    kind = _DTYPES[tensor.dtype]
    data = raw(tensor.detach().contiguous()).cpu().numpy()
    return data.view(kind.numpy).reshape(tuple(tensor.shape))


class TensorStages(WrappedExecutable):
    """Stages between which the host reads sizes: tensors of the caller become arrays and back."""

    def __init__(self, staged: StagedExecutable) -> None:
        super().__init__(staged)
        self._names = [name for name, _ in staged.parts.whole.outputs]

    def run(self, feeds: Feeds, out: Feeds = NOTHING) -> Outputs:
        if not tensors_in({**feeds, **out}):
            return self.inner.run(feeds, out)
        tensors = tensors_in(feeds)
        places = {x.device for x in tensors_in({**tensors, **out}).values()}
        arrays = {n: to_host(x) if n in tensors else x for n, x in feeds.items()}
        made = self.inner.run(arrays, {n: x for n, x in out.items() if isinstance(x, np.ndarray)})
        return [
            _delivered(n, x, out.get(n), next(iter(places)) if tensors else None)
            for n, x in zip(self._names, made, strict=True)
        ]


def _delivered(name: str, made: Any, given: Any, place: torch.device | None) -> Any:
    """Return a result of the host in the form that the caller wants."""
    if not isinstance(made, np.ndarray) or made.dtype == object or isinstance(given, np.ndarray):
        return made
    if given is None and place is None:
        return made
    from monograph.ir import from_numpy as type_of

    tensor = from_numpy(made).view(torch_type(type_of(made.dtype))).reshape(made.shape)
    if given is None:
        return tensor.to(place)
    if given.shape != tensor.shape or given.dtype != tensor.dtype:
        raise FeedError(
            f"output {name!r} does not fit into the tensor given for it",
            expected=f"{tensor.dtype}{list(tensor.shape)}",
            given=f"{given.dtype}{list(given.shape)}",
        )
    return given.copy_(tensor)


def check_places(
    ports: Sequence[Port],
    feeds: Mapping[str, Any],
    checked: Mapping[str, Any],
    out: Mapping[str, Any],
    donate: Mapping[str, str],
    returned: Mapping[str, Any],
    place: torch.device | None,
) -> dict[str, Any]:
    """The arrays and tensors to write outputs into, or one FeedError with all that is wrong.

    Donated state that has been returned to the session is among them, unless `out` says otherwise.
    """
    check_mapping(out)
    known = {p.name: p for p in ports}
    tensors = {n: x for n, x in tensors_in(out).items() if n in known}
    arrays = {n: x for n, x in out.items() if n not in tensors}
    back = tensors_in(returned)
    rest = {n: x for n, x in returned.items() if n not in back}
    given: dict[str, Any] = check_out(ports, checked, arrays, donate, rest)
    problems = [p for n, x in tensors.items() for p in _unfit(known[n], x, place)]
    tensors = {**back, **tensors}
    problems = problems or _overlaps(tensors, tensors_in(feeds), donate)
    if problems:
        raise FeedError("\n".join(["outputs cannot be written as asked:", *problems]))
    return {**given, **tensors}


def _unfit(port: Port, tensor: torch.Tensor, place: torch.device | None) -> list[str]:
    problems = []
    wanted = None if port.dtype is None else torch_type(port.dtype)
    if port.type is not None and wanted is None:
        problems.append(f"its type is {port.type}, which no tensor holds")
    if wanted is not None and tensor.dtype != wanted:
        problems.append(f"expected {wanted}, given {tensor.dtype}")
    shape = tuple(tensor.shape)
    if port.shape is not None and not fits_shape(shape, port.shape):
        problems.append(f"expected the shape {list(port.shape)}, given {list(shape)}")
    if tensor.device != place:
        problems.append(f"expected a tensor on {place}, given one on {tensor.device}")
    if not tensor.is_contiguous():
        problems.append("its elements do not lie one after the other")
    if tensor.requires_grad:
        problems.append("it requires a gradient")
    return [f"  {port.name}: {text}" for text in problems]


def _overlaps(
    out: Mapping[str, torch.Tensor],
    feeds: Mapping[str, torch.Tensor],
    donate: Mapping[str, str],
) -> list[str]:
    """Return the outputs that would overwrite inputs or each other."""
    problems = []
    for name, tensor in out.items():
        for other, fed in feeds.items():
            same = donate.get(name) == other and _span(tensor) == _span(fed)
            if _touch(tensor, fed) and not same:
                problems.append(f"  {name}: lies in the memory of the input {other!r}")
    for (name, a), (other, b) in itertools.combinations(out.items(), 2):
        if _touch(a, b):
            problems.append(f"  {name}: lies in the memory of the output {other!r}")
    return problems


def _span(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return the device and address range of a tensor's elements."""
    extent = 1 + sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    size = extent * tensor.element_size() if tensor.numel() else 0
    return tensor.device, tensor.data_ptr(), tensor.data_ptr() + size


def _touch(a: torch.Tensor, b: torch.Tensor) -> bool:
    (place, start, stop), (other, first, last) = _span(a), _span(b)
    return place == other and start < last and first < stop


def imported(data: Any) -> Any:
    """Return a feed; a tensor of another library as a torch tensor."""
    if isinstance(data, torch.Tensor) or not is_foreign(data):
        return data
    return torch.from_dlpack(data)


def refuse_misfit(slot: DevicePort, data: torch.Tensor) -> None:
    """Refuses a tensor of another type or shape."""
    if tuple(data.shape) != slot.shape or data.dtype != torch_type(slot.dtype):
        raise FeedError(
            f"the input {slot.name} has another type",
            expected=f"{torch_type(slot.dtype)} {list(slot.shape)}",
            given=f"{data.dtype} {list(data.shape)}",
        )


def where_else(data: Any, place: torch.device) -> str:
    """Return where an input or output is; "" if it is on the device."""
    if not isinstance(data, torch.Tensor):
        return "it is on the host"
    return f"it is on {data.device}" if data.device != place else ""


def why_copied(data: Any, place: torch.device) -> str:
    """Return why an input must be copied; "" if it need not be."""
    if not isinstance(data, torch.Tensor):
        return "it is on the host"
    if data.device != place:
        return f"it is on {data.device}"
    if not data.is_contiguous():
        return "it is strided"
    if not is_plain(data):
        return "it is negated when read"
    return "it is misaligned" if data.data_ptr() % VECTOR else ""


def why_not_written(given: Any, others: Iterable[Any], place: torch.device) -> str:
    """Return why kernels cannot write to the caller's memory; "" if they can."""
    if not isinstance(given, torch.Tensor) or given.device != place:
        return ""
    if not given.is_contiguous():
        return "it is strided"
    if not is_plain(given):
        return "it is negated when read"
    start, end = _range(given)
    for other in others:
        if isinstance(other, torch.Tensor) and other.device == place:
            first, last = _range(other)
            if first < end and start < last:
                return "it overlaps another"
    return ""


def why_copied_back(given: Any, place: torch.device) -> str:
    """Return why an output is copied to the caller's memory; "" if it need not be."""
    if given is None:
        return ""
    misaligned = isinstance(given, torch.Tensor) and given.data_ptr() % VECTOR
    return where_else(given, place) or ("it is misaligned" if misaligned else "")


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie in."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def lands_on_host(given: Any, as_tensors: bool) -> bool:
    """Return True if an output is an array on the host."""
    return isinstance(given, np.ndarray) or (given is None and not as_tensors)
