"""Functions of a state as captured CUDA graphs: hundreds of small kernels for the price of one launch."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as trees

from equipoise.errors import require
from equipoise.host import Fetched, fetch
from equipoise.streams import Beside, capture

__all__ = ["Eager", "Outcome", "Resident", "Step", "Stepper", "steady"]

S = TypeVar("S")
T = TypeVar("T")


class Outcome(NamedTuple, Generic[S]):
    """What a step gave."""

    after: S
    """The state after it. It holds as `Stepper.holds` says, and is read after `Stepper.join`."""
    told: Fetched | None
    """What the host is told, if anything."""
    turn: int
    """Which step of its stepper it was."""


Step = Callable[..., tuple[Tensor | None, S]]
"""A pure function of a state and of tensors or None, which gives what the host is to be told and the state after it."""


class Stepper(Protocol[S]):
    """A step, as it is done on some device."""

    def __call__(self, state: S, *inputs: Tensor | None, tell: bool = True) -> Outcome[S]:
        """From a state: one step, of which the host is told or not.

        What it is told must be read before the next step of which it is.
        """
        ...

    def join(self) -> None:
        """Have what the current stream is given from now on come after the last step."""
        ...

    def holds(self, outcome: Outcome[S]) -> bool:
        """Whether a state is still what the step gave."""
        ...

    def own(self, state: T) -> T:
        """A state, or a part of one, that no step will change."""
        ...


def steady(before: object, after: object) -> bool:
    """Whether a state is made of tensors on one device, and the one after it of the same: names, shapes and dtypes."""
    (left, structure), (right, other) = trees.tree_flatten(before), trees.tree_flatten(after)
    tensors = all(isinstance(x, Tensor) and x.device == left[0].device for x in left)
    return tensors and structure == other and _kinds(left) == _kinds(right)


class Eager(Generic[S]):
    """A step as it stands: new tensors every time.

    Args:
        step: The step.
    """

    def __init__(self, step: Step[S]) -> None:
        self.step = step

    def __call__(self, state: S, *inputs: Tensor | None, tell: bool = True) -> Outcome[S]:
        """By the current stream."""
        told, after = self.step(state, *inputs)
        return Outcome(after, fetch(told) if tell and told is not None else None, 0)

    def join(self) -> None:
        """It is in order."""

    def holds(self, outcome: Outcome[S]) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def own(self, state: T) -> T:
        """It is its own."""
        return state


class _Place(Generic[S]):
    """Where a state is on the device, with what the host was told beside it."""

    def __init__(self, state: S) -> None:
        leaves, structure = trees.tree_flatten(state)
        self.leaves: list[Tensor] = [torch.empty_like(x) for x in leaves]
        self.state: S = trees.tree_unflatten(self.leaves, structure)
        self.told: Tensor | None = None
        self.written = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def write(self, state: S) -> None:
        require(steady(self.state, state), "the state of a captured step must keep its shapes and dtypes", state)
        _copy(self.leaves, trees.tree_leaves(state))

    def tell(self, told: Tensor) -> None:
        if self.told is None:
            self.told = torch.empty(told.shape, dtype=told.dtype, device="cpu", pin_memory=told.is_cuda)
        self.told.copy_(told, non_blocking=True)


class Resident(Generic[S]):
    """A step as captured graphs, on a stream beside the current one.

    A state has two places on the device: a step reads the one and writes the other, so that nothing is copied but what
    it is given. A state that is in neither place is moved in first. What a step gave therefore holds until the next
    one, which either begins there or, if the state before was taken up again, writes over it.

    In order: a step waits for what the current stream was given before, the current stream for a step where `join`
    says so, and the host for what it is told alone.

    Args:
        step: It must not read a value on the host, nor keep what it is given.
        device: A CUDA device.
    """

    def __init__(self, step: Step[S], device: torch.device) -> None:
        self.step, self.device = step, device
        self._beside = Beside(device, "numbers")
        self._places: tuple[_Place[S], ...] = ()
        self._inputs: dict[int, Tensor] = {}
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._last: _Place[S] | None = None
        self._turn = 0
        # What it writes to must stay until it has.
        weakref.finalize(self, self._beside.stream.synchronize).atexit = False

    def __call__(self, state: S, *inputs: Tensor | None, tell: bool = True) -> Outcome[S]:
        """Beside the current stream."""
        self.join()  # the last step may still read what is written here
        self._turn += 1  # from here on what it gave may be lost, also if something fails
        source = self._whereabouts(state)
        graph = self._feed(source, inputs, tell=tell)
        into = self._places[1 - source]
        with self._beside as stream:
            graph.replay()
            into.written.record(stream)
        self._last = into
        told = Fetched(into.told, into.written) if tell and into.told is not None else None
        return Outcome(into.state, told, self._turn)

    def join(self) -> None:
        """Let the current stream wait."""
        if self._last is not None:
            self._beside.current().wait_event(self._last.written)

    def holds(self, outcome: Outcome[S]) -> bool:
        """As long as no other step came."""
        return outcome.turn == self._turn

    def own(self, state: T) -> T:
        """A copy, made by the current stream."""
        self.join()
        copy: T = trees.tree_map(torch.clone, state)
        return copy

    def _whereabouts(self, state: S) -> int:
        for k, place in enumerate(self._places):
            if place.state is state:
                return k
        if not self._places:
            with self._beside:  # whose memory it is, also when it is given back
                self._places = (_Place(state), _Place(state))
            self._beside.current().wait_stream(self._beside.stream)
        self._places[0].write(state)
        return 0

    def _feed(self, source: int, inputs: Sequence[Tensor | None], *, tell: bool) -> torch.cuda.CUDAGraph:
        """The graph for such inputs, which it then reads."""
        given = [(k, x) for k, x in enumerate(inputs) if x is not None]
        for k, x in given:
            if k not in self._inputs:
                self._inputs[k] = torch.empty_like(x)
            self._inputs[k].copy_(x)
        key = (source, tell, *(k for k, _ in given))
        if key not in self._graphs:
            held = [None if x is None else self._inputs[k] for k, x in enumerate(inputs)]
            self._graphs[key] = self._captured(source, held, tell=tell)
        return self._graphs[key]

    def _captured(self, source: int, held: Sequence[Tensor | None], *, tell: bool) -> torch.cuda.CUDAGraph:
        here, there = self._places[source], self._places[1 - source]

        def work() -> None:
            told, after = self.step(here.state, *held)
            there.write(after)
            if tell and told is not None:
                there.tell(told)

        if self._pool is None:  # one for all: no two of them are done at the same time
            self._pool = torch.cuda.graph_pool_handle()
        return capture(work, self.device, self._pool)


def _kinds(leaves: Sequence[Any]) -> list[Any]:
    """Shapes, dtypes and devices of tensors; of something else, what it is."""
    return [(x.shape, x.dtype, x.device) if isinstance(x, Tensor) else type(x) for x in leaves]


@torch.no_grad()
def _copy(into: list[Tensor], tensors: list[Tensor]) -> None:
    """One launch per type."""
    for dtype in dict.fromkeys(x.dtype for x in into):
        chosen = [k for k, x in enumerate(into) if x.dtype == dtype]
        torch._foreach_copy_([into[k] for k in chosen], [tensors[k] for k in chosen])
