"""A sweep: one model after the other along a list of preferences, each begun where a neighbour ended."""

import copy
import os
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise import preference
from equipoise.errors import DamagedFileError, StateMismatchError, require, warn
from equipoise.train.checkpoint import load, save
from equipoise.train.multi_objective import MultiObjective

__all__ = ["Swept", "sweep", "visits"]


class Swept(NamedTuple):
    """What a sweep found for one preference.

    Examples:
        >>> found = eq.train.Swept(torch.tensor([0.3, 0.7]), {"x": torch.ones(1)}, {"tch": 0.2}, steps=100)
        >>> found.preference.tolist() == torch.tensor([0.3, 0.7]).tolist(), found.metrics["tch"], found.steps
        (True, 0.2, 100)
    """

    preference: Tensor
    """w, (m,)."""
    solution: dict[str, Tensor]
    """As `mol.solution()`, for `model.load_state_dict`; memory-mapped if the sweep has a folder."""
    metrics: dict[str, float]
    """`mol.metrics()` after the last step."""
    steps: int
    """Steps taken for this preference."""


class Visit(NamedTuple):
    """A preference of a sweep, by its place in the list, and the one whose end it begins at."""

    ray: int
    parent: int | None


def visits(preferences: Tensor) -> list[Visit]:
    """The order in which preferences are visited: from the most central one, always to the nearest that is left.

    Each begins where the nearest one that is finished ended; of several equally near, the one visited last. Together
    they are a minimum spanning tree (Prim's algorithm).

    Args:
        preferences: Shape (n, m).

    Examples:
        >>> from equipoise.train.sweep import visits
        >>> w = eq.preference.linspace(5)
        >>> [(visit.ray, visit.parent) for visit in visits(w)]
        [(2, None), (1, 2), (0, 1), (3, 2), (4, 3)]
    """
    w = preferences.double()
    away = torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist").tolist()
    first = int((w - w.mean(0)).norm(dim=-1).argmin())
    order, left = [Visit(first, None)], [k for k in range(len(w)) if k != first]
    while left:
        ways = ((round(away[v.ray][k], 9), -place, k, v.ray) for place, v in enumerate(order) for k in left)
        *_, nearest, parent = min(ways)
        order.append(Visit(nearest, parent))
        left.remove(nearest)
    return order


def sweep(
    mol: MultiObjective,
    preferences: Tensor | Sequence[Sequence[float]],
    train: Callable[[int], object],
    *,
    first: int,
    then: int,
    folder: str | os.PathLike[str] | None = None,
) -> list[Swept]:
    """Train for several preferences, each warm: from where the nearest finished one ended.

    The most central preference is trained first, from where `mol` is. Every other one goes on from its nearest
    neighbour with `mol.set_preference`: model, optimizer and λ are that neighbour's. Ten rays with `then` at a third of
    `first` cost as much as four. How good the answers are is measured in docs/tutorial/5-no-trade-off-yet.md.

    Every preference begins with the optimizer's settings as they were when `sweep` was called. So a learning-rate
    schedule restarts: make it inside `train`, for n steps. Afterwards model and `mol` are at the preference that was
    visited last.

    Args:
        mol: The run. Its own preference does not count.
        preferences: The trade-offs, (n, m), such as `eq.preference.linspace(10)`.
        train: Your loop: `train(n)` takes n steps, or trains for n epochs, with `mol` and its optimizer.
        first: n for the first preference.
        then: n for each of the others.
        folder: Where finished answers are kept, so that a sweep that was stopped goes on. Call it again with the same
            arguments, a new model and a new `mol`: what is finished is read, not trained again. The states that later
            preferences begin with are kept there too, as long as they are needed. Without a folder both are in memory.
            Of several processes only one may have it.

    Returns:
        One answer for each preference, in your order.

    Raises:
        ValueError: For preferences of another length or outside the simplex, for none, for two that are equal, and for
            a run with limits or, with a folder, without an optimizer.
        StateMismatchError: If the folder has another sweep; the message says what differs.
        DamagedFileError: If a file in it is damaged; the message names it. Delete it: what it had is trained again.

    Examples:
        >>> x = torch.nn.Parameter(torch.tensor([0.5]))
        >>> model = torch.nn.ParameterDict({"x": x})
        >>> optimizer = torch.optim.SGD([x], lr=0.05)
        >>> mol = eq.MultiObjective(model, optimizer, [0.5, 0.5])
        >>> def train(steps):
        ...     for _ in range(steps):
        ...         mol(torch.stack([x[0] ** 2, (x[0] - 2) ** 2])).backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> w = eq.preference.linspace(3, margin=0.1)
        >>> answers = eq.sweep(mol, w, train, first=300, then=100)
        >>> [round(answer.solution["x"].item(), 1) for answer in answers]  # w₁ x² = w₂ (x − 2)²
        [1.5, 1.0, 0.5]
    """
    w = preference.validate(preferences, len(mol.preference))
    _check(mol, w, train, first, then)
    kept = _Kept(mol, _Folder(Path(folder), w, first, then) if folder is not None else _Memory())
    plan = visits(w)
    answers = {visit.ray: found for visit in plan if (found := kept.store.answer(visit.ray)) is not None}
    left, before = _unfinished(plan, answers, kept.store), None
    for place, (index, parent) in enumerate(left):
        begun = {later.parent for later in left[place + 1 :]}
        kept.begin(parent, going_on=parent == before)
        answers[index] = _trained(mol, w[index], train, first if parent is None else then)
        answers[index] = kept.end(index, answers[index], needed=index in begun)
        kept.store.release(begun)
        before = index
    return [answers[index] for index in range(len(w))]


def _unfinished(plan: Sequence[Visit], finished: Container[int], store: "_Memory | _Folder") -> list[Visit]:
    """What must be trained: all that has no answer, and again whatever it begins at and is no longer kept."""
    left: list[Visit] = []
    for visit in reversed(plan):
        lost = any(later.parent == visit.ray for later in left) and not store.has_end(visit.ray)
        if visit.ray not in finished or lost:
            left.append(visit)
    return left[::-1]


def _check(mol: MultiObjective, w: Tensor, train: object, first: int, then: int) -> None:
    require(w.ndim == 2 and len(w) >= 1, "preferences must have shape (n, m) with n ≥ 1", lambda: tuple(w.shape))
    require(len(set(map(tuple, w.tolist()))) == len(w), "preferences must differ from each other", w.tolist())
    require(callable(train), "train must be a function of the number of steps", train)
    for name, n in (("first", first), ("then", then)):
        require(type(n) is int and n >= 1, f"{name} must be a whole number of at least 1", repr(n))
    mol._run.check_open()
    require(
        mol._run.watch is None, "mol must have no limits to be swept: its preference must stay", "a run with limits"
    )


def _trained(mol: MultiObjective, w: Tensor, train: Callable[[int], object], n: int) -> Swept:
    mol.set_preference(w)
    begun = mol.step
    train(n)
    steps = mol.step - begun
    if steps == 0:
        warn(f"train({n}) took no step for the preference {[round(x, 4) for x in w.tolist()]}: its answer is untrained")
    return Swept(w, mol.solution(), mol.metrics(), steps)


# What is kept while it is needed ----------------------------------------------------------


class _Kept:
    """Where the preferences ended that others begin at, and the optimizer's settings at the start.

    Args:
        mol: The run.
        store: Where it is kept.
    """

    def __init__(self, mol: MultiObjective, store: "_Memory | _Folder") -> None:
        self.mol, self.store = mol, store
        attached = mol._run.attached
        self.optimizer = None if attached is None else attached.optimizer
        rule = "mol must have an optimizer for a sweep with a folder: its state is part of what goes on"
        require(self.optimizer is not None or isinstance(store, _Memory), rule, "none")
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        self.settings = [copy.deepcopy(_settings(group)) for group in groups]

    def begin(self, parent: int | None, *, going_on: bool) -> None:
        """Be where `parent` ended, with the optimizer's settings of the start."""
        if parent is not None and not going_on:
            state = self.store.end(parent)
            self.mol.model.load_state_dict(state["model"])
            self.mol.load_state_dict(state["mol"])
            if self.optimizer is not None:
                self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would change what it is given
        for group, settings in zip(self.optimizer.param_groups if self.optimizer else [], self.settings, strict=True):
            for name in _settings(group):
                del group[name]
            group.update(copy.deepcopy(settings))

    def end(self, index: int, found: Swept, *, needed: bool) -> Swept:
        """A preference is finished. Its end is kept first, so that a finished one has it."""
        if needed:
            model, optimizer = self.mol.model.state_dict(), self.optimizer and self.optimizer.state_dict()
            self.store.keep(index, {"model": model, "mol": self.mol.state_dict(), "optimizer": optimizer})
        return self.store.finish(index, found)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in {"params", "param_names"}}


class _Memory:
    def __init__(self) -> None:
        self._ends: dict[int, dict[str, Any]] = {}

    def answer(self, index: int) -> Swept | None:  # noqa: ARG002
        return None

    def has_end(self, index: int) -> bool:
        return index in self._ends

    def end(self, index: int) -> dict[str, Any]:
        return self._ends[index]

    def keep(self, index: int, state: dict[str, Any]) -> None:
        self._ends[index] = copy.deepcopy(state)

    def finish(self, index: int, found: Swept) -> Swept:  # noqa: ARG002
        return found

    def release(self, needed: Container[int | None]) -> None:
        self._ends = {index: state for index, state in self._ends.items() if index in needed}


class _Folder:
    """One file for each answer, and one for each end that is still needed."""

    def __init__(self, path: Path, w: Tensor, first: int, then: int) -> None:
        require(not path.exists() or path.is_dir(), "folder must be a folder, or not exist", path)
        path.mkdir(parents=True, exist_ok=True)
        self._path, self._w = path, w
        self._sweep = {"preferences": w.tolist(), "first": first, "then": then}

    def _file(self, kind: str, index: int) -> Path:
        return self._path / f"{kind}-{index}.pt"

    def _read(self, path: Path, entries: set[str], *, mmap: bool = False) -> dict[str, Any]:
        found = load(path, mmap=mmap)
        if not isinstance(found, dict) or found.keys() != {"sweep", *entries}:
            raise DamagedFileError(f"{path} must be a file of a sweep; found another one")
        for name, here in self._sweep.items():
            there = found["sweep"].get(name)
            if there != here:
                raise StateMismatchError(f"{path} is of another sweep: {name} must be {here}; found {there}")
        return found

    def answer(self, index: int) -> Swept | None:
        path = self._file("answer", index)
        if not path.exists():
            return None
        found = self._read(path, {"solution", "metrics", "steps"}, mmap=True)
        return Swept(self._w[index], found["solution"], found["metrics"], found["steps"])

    def has_end(self, index: int) -> bool:
        return self._file("end", index).exists()

    def end(self, index: int) -> dict[str, Any]:
        return self._read(self._file("end", index), {"model", "mol", "optimizer"})

    def keep(self, index: int, state: dict[str, Any]) -> None:
        save({"sweep": self._sweep, **state}, self._file("end", index))

    def finish(self, index: int, found: Swept) -> Swept:
        content = {"solution": found.solution, "metrics": found.metrics, "steps": found.steps}
        save({"sweep": self._sweep, **content}, self._file("answer", index))
        return self.answer(index) or found

    def release(self, needed: Container[int | None]) -> None:
        for index in range(len(self._w)):
            if index not in needed:
                self._file("end", index).unlink(missing_ok=True)
