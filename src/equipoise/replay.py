"""Pure functions of tensors as captured CUDA graphs: hundreds of small kernels for the price of one launch."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as trees

__all__ = ["Replayed", "capture"]

P = ParamSpec("P")
R = TypeVar("R")


class Replayed(Generic[P, R]):
    """A function that gives what another one gives; on a CUDA device it is captured at its first call and replayed.

    One graph is kept for every structure, shape and type of the arguments.

    Args:
        function: A pure one of tensors, nested in tuples, named tuples and dictionaries; what else it is given must be
            hashable. It must not read a value on the host, nor keep what it is given.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self._graphs: dict[Any, list[_Captured]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function gives: new tensors every time."""
        if torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        leaves, structure = trees.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        on_gpu = bool(tensors) and all(x.is_cuda for x in tensors)
        if not on_gpu or torch.cuda.is_current_stream_capturing():
            return self.function(*args, **kwargs)
        key = tuple((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in leaves)
        known = self._graphs.setdefault(key, [])
        held = next((one for one in known if one.given == structure), None)
        if held is None:
            held = _record(self.function, leaves, structure)
            known.append(held)
        held.feed(tensors)
        held.graph.replay()
        result: R = trees.tree_unflatten(held.results(), held.found)
        return result


class _Captured(NamedTuple):
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Any]
    given: trees.TreeSpec
    found: trees.TreeSpec

    def feed(self, tensors: list[Tensor]) -> None:
        _copy(self.inputs, tensors)

    def results(self) -> list[Any]:
        fresh = [torch.empty_like(x) if isinstance(x, Tensor) else x for x in self.outputs]
        pairs = [(new, x) for new, x in zip(fresh, self.outputs, strict=True) if isinstance(x, Tensor)]
        _copy([new for new, _ in pairs], [x for _, x in pairs])
        return fresh


@torch.no_grad()
def _copy(into: list[Tensor], tensors: list[Tensor]) -> None:
    """One launch per type."""
    for dtype in dict.fromkeys(x.dtype for x in into):
        chosen = [k for k, x in enumerate(into) if x.dtype == dtype]
        torch._foreach_copy_([into[k] for k in chosen], [tensors[k] for k in chosen])


def _record(function: Callable[..., Any], leaves: list[Any], structure: trees.TreeSpec) -> _Captured:
    held = [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
    args, kwargs = trees.tree_unflatten(held, structure)
    found: list[Any] = []

    def work() -> None:
        found[:] = [function(*args, **kwargs)]

    inputs = [x for x in held if isinstance(x, Tensor)]
    graph = capture(work, inputs[0].device)
    outputs, shape = trees.tree_flatten(found[0])
    return _Captured(graph, inputs, outputs, structure, shape)


def capture(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Work as a CUDA graph. It is done three times first, as lazy initialisation cannot be captured."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a loader, may go on meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    return graph
