"""A sweep: models for several preferences that share the first part of their training."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise import preference
from equipoise.batch import whole
from equipoise.errors import DamagedFileError, StateMismatchError, require, warn
from equipoise.train.checkpoint import check_configuration, configuration, load, save
from equipoise.train.inputs import read_change
from equipoise.train.multi_objective import MultiObjective

__all__ = ["Swept", "sweep"]


Preferences = Tensor | Sequence[Sequence[float]] | Sequence[Mapping[str, float]]
"""One w for each answer, (n, m); a mapping gives it by name."""


class Swept(NamedTuple):
    """The result of a sweep for one preference.

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
    """Steps taken for this preference alone."""


def sweep(
    mol: MultiObjective,
    preferences: Preferences,
    train: Callable[[int], object],
    *,
    first: int,
    then: int,
    folder: str | os.PathLike[str] | None = None,
) -> list[Swept]:
    """Train for several preferences that share the first part of their training.

    The shared part trains the most central preference for `first`, starting from the current state of `mol`. Every
    preference, including this one, then continues from there for `then`, by `mol.set_preference`: it starts with the
    model, optimizer and λ of the shared part. Ten preferences with `first` at 70 % of a run and `then` at 33 % cost
    four runs. docs/tutorial/5-no-trade-off-yet.md measures how good the answers are.

    Let a learning-rate schedule depend on `mol.step`: for every preference it continues from the end of the shared
    part. A scheduler of torch must be made inside `train`: all settings of the optimizer are reset, at the start of
    each preference, to their values when `sweep` was called. At the end, the model and `mol` have the preference that
    was trained last; if all answers come from the folder, both stay as they are.

    Args:
        mol: The run. Its own preference is ignored.
        preferences: The trade-offs, (n, m), such as `eq.preference.linspace(10)`, or a list of them by name.
        train: Your loop: `train(n)` takes n steps, or trains for n epochs, with `mol` and its optimizer.
        first: n for the part that all share.
        then: n for each preference.
        folder: A folder for finished answers, from which an interrupted sweep resumes. Call `sweep` again with the same
            arguments, a new model and a new `mol`: finished answers are read, not trained again. The folder also keeps
            the end of the shared part until all are finished. Without a folder, both are kept in memory. Only one
            process may use a folder at a time. It holds the settings of `mol` and the shapes of the parameters, and is
            refused for others; the optimizer, `train` and its data are not compared.

    Returns:
        One answer for each preference, in your order.

    Raises:
        ValueError: There are no preferences, or they have another length, lie outside the simplex or are equal; or the
            run has limits or, with a folder, no optimizer; or the preference changes inside `train`.
        StateMismatchError: The folder belongs to another sweep; the message says what differs.
        DamagedFileError: A file in it is damaged; the message names it. Delete it, and its part is trained again.

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
        >>> answers = eq.sweep(mol, w, train, first=200, then=100)
        >>> [round(answer.solution["x"].item(), 1) for answer in answers]  # w₁ x² = w₂ (x − 2)²
        [1.5, 1.0, 0.5]
    """
    w = _read(mol, preferences)
    first, then = whole("first", first), whole("then", then)
    require(callable(train), "train must be a function of the number of steps", train)
    store = _Folder(Path(folder), mol, w, first, then) if folder is not None else _Memory()
    trunk = _Trunk(mol, store)
    central = w[int((w - w.mean(0)).norm(dim=-1).argmin())]
    answers = {index: found for index in range(len(w)) if (found := store.answer(index)) is not None}
    left = [index for index in range(len(w)) if index not in answers]
    with trunk.watched():
        if left and not store.has_trunk():
            mol.set_preference(central)
            _train(mol, train, first)
            trunk.keep()
        for index in left:
            trunk.begin()
            answers[index] = store.finish(index, _trained(mol, w[index], train, then))
    store.release()
    return [answers[index] for index in range(len(w))]


def _read(mol: MultiObjective, preferences: Preferences) -> Tensor:
    """The preferences, (n, m), or a ValueError."""
    run = mol._run
    run.check_open()
    require(run.watch is None, "mol must have no limits to be swept: its preference must stay", "a run with limits")
    numbers: Any = preferences
    if isinstance(preferences, Sequence) and any(isinstance(one, Mapping) for one in preferences):
        numbers = torch.stack([read_change(one, run.wish, limited=False).w for one in preferences])
    w = preference.validate(numbers, len(mol.preference))
    require(w.ndim == 2 and len(w) >= 1, "preferences must have shape (n, m) with n ≥ 1", lambda: tuple(w.shape))
    require(len(set(map(tuple, w.tolist()))) == len(w), "preferences must differ from each other", w.tolist())
    return w


def _train(mol: MultiObjective, train: Callable[[int], object], n: int) -> int:
    """Train one part of the sweep; returns the number of its steps."""
    begun, before = mol.step, mol.preferences
    train(n)
    rule = (
        "the preference must stay while a sweep trains, as each answer is for its own: do not call mol.set_preference "
        "in train, nor request another preference of a steered run"
    )
    require(mol.preferences == before, rule, lambda: f"a change after step {mol.preferences[-1][0]}")
    return mol.step - begun


def _trained(mol: MultiObjective, w: Tensor, train: Callable[[int], object], n: int) -> Swept:
    mol._run.restart(w.to(mol._run.wish.w, copy=True))  # also of the central one: its answer is of its own steps
    steps = _train(mol, train, n)
    if steps == 0:
        warn(f"train({n}) took no step for the preference {[round(x, 4) for x in w.tolist()]}: its answer is untrained")
    return Swept(w, mol.solution(), mol.metrics(), steps)


# What is kept while it is needed ----------------------------------------------------------


class _Trunk:
    """The end of the shared part, and the optimizer's settings at the start.

    Args:
        mol: The run.
        store: The storage for it.
    """

    def __init__(self, mol: MultiObjective, store: "_Memory | _Folder") -> None:
        self.mol, self.store = mol, store
        attached = mol._run.attached
        self.optimizer = None if attached is None else attached.optimizer
        rule = "mol must have an optimizer for a sweep with a folder: its state is part of what goes on"
        require(self.optimizer is not None or isinstance(store, _Memory), rule, "none")
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        self.settings = [copy.deepcopy(_settings(group)) for group in groups]
        self.rate = _rate(groups)
        """The highest learning rate of the shared part."""
        self._shared, self._warned = True, False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context that warns once if a preference has a higher learning rate than the shared part had."""
        hook = None if self.optimizer is None else self.optimizer.register_step_pre_hook(self._look)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()

    def _look(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        rate = _rate(optimizer.param_groups)
        if self._shared:
            self.rate = max(self.rate, rate)
        elif rate > self.rate * (1 + 1e-6) and not self._warned:
            self._warned = True
            warn(
                f"the learning rate of a preference rose to {rate:.3g}, above the {self.rate:.3g} of the shared part: "
                "does a torch scheduler go on, while sweep resets the optimizer's settings for every preference? Let "
                "the rate depend on mol.step, or make the scheduler inside train; this is said once"
            )

    def keep(self) -> None:
        """Save the state at the end of the shared part."""
        model, optimizer = self.mol.model.state_dict(), self.optimizer and self.optimizer.state_dict()
        self.store.keep({"model": model, "mol": self.mol.state_dict(), "optimizer": optimizer, "rate": self.rate})

    def begin(self) -> None:
        """Restore the state at the end of the shared part, with the optimizer's initial settings."""
        state = self.store.trunk()
        self._shared, self.rate = False, state["rate"]
        self.mol.model.load_state_dict(state["model"])
        self.mol.load_state_dict(state["mol"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # load_state_dict may modify its argument
        for group, settings in zip(self.optimizer.param_groups if self.optimizer else [], self.settings, strict=True):
            for name in _settings(group):
                del group[name]
            group.update(copy.deepcopy(settings))


def _rate(groups: list[dict[str, Any]]) -> float:
    """The highest learning rate; those in tensors are left out, as they may be on a device."""
    return max((group["lr"] for group in groups if isinstance(group.get("lr"), float | int)), default=0.0)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in {"params", "param_names"}}


class _Memory:
    def __init__(self) -> None:
        self._trunk: dict[str, Any] = {}

    def answer(self, index: int) -> Swept | None:  # noqa: ARG002
        return None

    def has_trunk(self) -> bool:
        return False

    def trunk(self) -> dict[str, Any]:
        return self._trunk

    def keep(self, state: dict[str, Any]) -> None:
        self._trunk = copy.deepcopy(state)

    def finish(self, index: int, found: Swept) -> Swept:  # noqa: ARG002
        return found

    def release(self) -> None:
        self._trunk = {}


class _Folder:
    """One file for each answer, and one for the end of the shared part while it is needed."""

    def __init__(self, path: Path, mol: MultiObjective, w: Tensor, first: int, then: int) -> None:
        require(not path.exists() or path.is_dir(), "folder must be a folder, or not exist", path)
        path.mkdir(parents=True, exist_ok=True)
        self._path, self._trunk, self._w = path, path / "trunk.pt", w
        self._sweep = {"preferences": w.tolist(), "first": first, "then": then}
        self._configuration = configuration(mol._run)

    def _answer(self, index: int) -> Path:
        return self._path / f"answer-{index}.pt"

    def _read(self, path: Path, entries: set[str], *, mmap: bool = False) -> dict[str, Any]:
        found = load(path, mmap=mmap)
        if not isinstance(found, dict) or found.keys() != {"sweep", *entries}:
            raise DamagedFileError(f"{path} must be a file of a sweep; found another one")
        for name, here in self._sweep.items():
            there = found["sweep"].get(name)
            if there != here:
                raise StateMismatchError(f"{path} is of another sweep: {name} must be {here}; found {there}")
        if "configuration" not in found["sweep"]:
            rule = f"{path} must have the configuration of its run"
            raise StateMismatchError(f"{rule}; found a file of an earlier version: use a new folder")
        try:
            check_configuration(found["sweep"]["configuration"], self._configuration)
        except StateMismatchError as error:
            raise StateMismatchError(f"{path} is of another sweep, use a new folder: {error}") from None
        return found

    def answer(self, index: int) -> Swept | None:
        path = self._answer(index)
        if not path.exists():
            return None
        found = self._read(path, {"solution", "metrics", "steps"}, mmap=True)
        return Swept(self._w[index], found["solution"], found["metrics"], found["steps"])

    def has_trunk(self) -> bool:
        return self._trunk.exists()

    def trunk(self) -> dict[str, Any]:
        return self._read(self._trunk, {"model", "mol", "optimizer", "rate"})

    def keep(self, state: dict[str, Any]) -> None:
        self._save(state, self._trunk)

    def finish(self, index: int, found: Swept) -> Swept:
        content = {"solution": found.solution, "metrics": found.metrics, "steps": found.steps}
        self._save(content, self._answer(index))
        return self.answer(index) or found

    def _save(self, content: dict[str, Any], path: Path) -> None:
        save({"sweep": {**self._sweep, "configuration": self._configuration}, **content}, path)

    def release(self) -> None:
        self._trunk.unlink(missing_ok=True)
