"""Steering a running training through a folder: it publishes its state there and follows requested preferences.

The training writes `status.json`; the steering side, such as `equipoise steer`, writes `wish.json`. Both are JSON with
a checksum and are replaced atomically. A wish is untrusted input: an invalid one is refused with a warning, and the
training continues.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.atomic import check_json, read_plain, release_lock, take_lock, write_json
from equipoise.errors import DamagedFileError, require, warn
from equipoise.train.distributed import ranks
from equipoise.train.inputs import Preference, Wish, read_change, read_preference
from equipoise.train.multi_objective import MultiObjective

__all__ = ["read_status", "steered", "write_wish"]

STATUS, WISH, LOCK = "status.json", "wish.json", "steered.lock"
MOST_STATUS, MOST_WISH = 1 << 24, 1 << 16
"""Bytes."""
ROWS, POINTS = 160, 240
"""The most rows of the history in a status, each a mean over some steps, and the most trade-offs."""
SLACK = 1e-4
"""How far the sum of a wish may be from 1, as for `mol.set_preference`."""
LATEST = 0.1
"""The share of a preference's latest steps that are averaged to get its point: one mini-batch is too noisy."""


@contextmanager
def steered(mol: MultiObjective, folder: str | os.PathLike[str], *, every: float = 0.5) -> Iterator[None]:
    """Let `equipoise steer FOLDER` show this training and change its preference, for the duration of the block.

    After a step, but at most once every `every` seconds, the state of the run is written to the folder. If another
    preference was requested since, `mol.set_preference` is called. `mol.preferences`, and so every checkpoint, records
    the changes. Without a request nothing changes. A file that cannot be written or read gives one warning and never
    stops the training.

    Args:
        mol: The run; it must have an optimizer, no limits and one process.
        folder: A folder for this run, created if missing. A wish from before the block is ignored.
        every: The least number of seconds between two checks of the folder, above 0.

    Raises:
        ValueError: `mol` is no MultiObjective, or its run has no optimizer, has limits, or uses several processes.
        OSError: Another run uses the folder, or it cannot be created.

    Examples:
        >>> import pathlib, tempfile
        >>> from equipoise.train.steering import read_status, write_wish
        >>> x = torch.nn.Parameter(torch.tensor([0.5]))
        >>> optimizer = torch.optim.SGD([x], lr=0.05)
        >>> mol = eq.MultiObjective(torch.nn.ParameterDict({"x": x}), optimizer, {"left": 0.5, "right": 0.5})
        >>> with tempfile.TemporaryDirectory() as folder, eq.train.steered(mol, folder, every=1e-3):
        ...     write_wish(folder, [0.1, 0.9])  # as the page does
        ...     for _ in range(300):
        ...         mol(torch.stack([x[0] ** 2, (x[0] - 2) ** 2])).backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...     read_status(folder)["names"]
        ['left', 'right']
        >>> [[round(x, 3) for x in w] for _, w in mol.preferences]
        [[0.5, 0.5], [0.1, 0.9]]
    """
    rule = "mol must be a MultiObjective: other models, such as a ParetoSet, have no one preference to steer"
    require(isinstance(mol, MultiObjective), rule, lambda: f"a {type(mol).__name__}")
    run = mol._run
    run.check_open()
    require(run.attached is not None, "mol must have an optimizer to be steered from outside", "none")
    require(run.watch is None, "mol must have no limits to be steered: their preference must stay", "a run with limits")
    rule = "mol must be trained by one process to be steered: others would not hear of it"
    require(ranks(None) == 1, rule, "several processes")
    sound = isinstance(every, Real) and math.isfinite(every) and every > 0
    require(sound, "every must be a positive number of seconds", every)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    lock, owner = take_lock(place / LOCK), os.getpid()
    assert run.attached is not None  # noqa: S101
    helm = _Helm(mol, place, every)
    hook = run.attached.optimizer.register_step_post_hook(lambda *_: helm.look())
    try:
        helm.tell("running")
        yield
        run.settle()
    except BaseException as error:
        helm.tell("failed", type(error).__name__)
        raise
    else:
        helm.tell("ended")
    finally:
        hook.remove()
        release_lock(lock, owner)


class _Helm:
    """Writes the status of a run, and follows wishes."""

    def __init__(self, mol: MultiObjective, folder: Path, every: float) -> None:
        self.mol, self.folder, self.every = mol, folder, every
        self.due = time.monotonic() + every
        self.refused: str | None = None
        self._heard = _stamp(folder / WISH)
        self._warned = False

    def look(self) -> None:
        """After a step: follow a new wish, then write the status."""
        if time.monotonic() < self.due:
            return
        self.mol._run.settle()  # outside the try: errors of the step itself must reach the caller
        self.hear()
        self.tell("running")
        self.due = time.monotonic() + self.every

    def hear(self) -> None:
        """Follow a new wish, if there is one."""
        found = _stamp(self.folder / WISH)
        if found in {self._heard, None}:
            return
        self._heard = found
        try:
            self.mol.set_preference(read_wish(self.folder, len(self.mol.preference)))
            self.refused = None
        except (ValueError, OSError) as error:
            self.refused = str(error)
            warn(f"the wish for another preference was refused, and the training goes on: {error}")

    def tell(self, state: str, why: str | None = None) -> None:
        """Write the status."""
        try:
            said = {"state": state, "why": why, "refused": self.refused}
            write_json(self.folder / STATUS, {**describe(self.mol), **said})
        except (OSError, ValueError) as error:
            if not self._warned:
                self._warned = True
                warn(f"the state of the run could not be written, and the training goes on: {error}; this is said once")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is replaced."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# The status ---------------------------------------------------------------------------------


def describe(mol: MultiObjective) -> dict[str, Any]:
    """The state of a run as plain numbers, None where there is no number.

    Returns:
        `names`, `preference`, `step`; `weights`, the kind of weights: "λ", or "coefficient" if the weighting has no λ;
        `now`: `loss`, `value` (f − z in its unit) and `weight` by objective; `history`: the same over the `steps`, in
        at most 160 rows; `points`: the `value` of each preference so far, averaged over its latest steps.
    """
    run, history = mol._run, mol.history
    table = history.table()
    m, steps = len(run.labels), table[:, 0]
    losses, coefficients, duals = table[:, 1 : m + 1], table[:, m + 1 : 2 * m + 1], table[:, 2 * m + 1 :]
    has_duals = mol.duals is not None
    weights, values = duals if has_duals else coefficients, run.above(losses)
    parts = {"loss": losses, "value": values, "weight": weights}
    return {
        "names": list(run.labels),
        "preference": mol.preference.tolist(),
        "step": mol.step,
        "weights": "λ" if has_duals else "coefficient",
        "now": {name: _plain(part[-1]) if len(part) else [None] * m for name, part in parts.items()},
        "history": {"steps": _thin(steps, last=True), **{name: _thin(part) for name, part in parts.items()}},
        "points": _points(mol.preferences, steps, values)[-POINTS:],
    }


def _points(preferences: Sequence[tuple[int, list[float]]], steps: Tensor, values: Tensor) -> list[dict[str, Any]]:
    """The point of each preference: the mean over its latest steps. A preference without a step has no point."""
    ends = [step for step, _ in preferences[1:]] + [math.inf]
    points = []
    for (begun, w), end in zip(preferences, ends, strict=True):
        own = values[(steps > begun) & (steps <= end)]
        if len(own):
            latest = own[-max(1, round(LATEST * len(own))) :]
            points.append({"preference": w, "value": _plain(latest.mean(0)), "after": begun})
    return points


def _thin(values: Tensor, *, last: bool = False) -> Any:  # noqa: ANN401
    """At most 160 rows: the means, or the last rows, of consecutive runs of nearly equal length."""
    runs = values.tensor_split(min(len(values), ROWS)) if len(values) else []
    return [_plain(run[-1] if last else run.mean(0)) for run in runs]


def _plain(values: Tensor) -> Any:  # noqa: ANN401
    """Numbers rounded to six digits, None for non-finite ones."""
    found = values.tolist()

    def plain(x: Any) -> Any:  # noqa: ANN401
        if isinstance(x, list):
            return [plain(inner) for inner in x]
        return float(f"{x:.6g}") if math.isfinite(x) else None

    return plain(found)


def read_status(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The status that a training wrote.

    Raises:
        DamagedFileError: The file is not a status.
        FileNotFoundError: There is no such file.
    """
    path = Path(folder, STATUS)
    found = check_json(read_plain(path, MOST_STATUS), path)
    if not _is_status(found):
        raise DamagedFileError(f"{path} must be the status of a training; found something else")
    return found


def _is_status(found: dict[str, Any]) -> bool:
    try:
        names, m, history = found["names"], len(found["names"]), found["history"]
        rows = len(history["steps"])
        tables = [[found["preference"]], *([found["now"][k]] for k in ("loss", "value", "weight"))]
        tables += [history[k] for k in ("loss", "value", "weight")]
        tables += [[point[k] for point in found["points"]] for k in ("value", "preference")]
        numbers = [found["step"], *history["steps"], *(x for t in tables for row in t for x in row)]
        return (
            m >= 1
            and all(isinstance(name, str) for name in [*names, found["state"], found["weights"]])
            and all(isinstance(found[k], str | None) for k in ("why", "refused"))
            and all(len(row) == m for t in tables for row in t)
            and all(len(history[k]) == rows for k in ("loss", "value", "weight"))
            and all(x is None or type(x) in {int, float} for x in numbers)
        )
    except (KeyError, TypeError):
        return False


# The wish -----------------------------------------------------------------------------------


def write_wish(folder: str | os.PathLike[str], preference: Preference) -> None:
    """Request another preference; the training checks that it has as many entries as the run has objectives.

    Args:
        folder: The folder of a run inside `steered`.
        preference: w, one entry per objective: non-negative, of sum 1; by name if it is a mapping.

    Raises:
        ValueError: There is no such folder, or the preference is outside the simplex or has other names.
        FileNotFoundError: The preference is by name, and no training has written to the folder yet.

    Examples:
        >>> import tempfile
        >>> from equipoise.train.steering import write_wish
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_wish(folder, torch.tensor([0.2, 0.8]))
    """
    place = Path(folder)
    rule = "folder must be that of a run: eq.train.steered(mol, folder) makes it"
    require(place.is_dir(), rule, f"{str(place)!r}, which does not exist")
    if isinstance(preference, Mapping) or hasattr(preference, "to_dict"):  # a Series of pandas
        status = read_status(place)
        wish = read_change(preference, Wish(torch.tensor(status["preference"]), tuple(status["names"])), limited=False)
    else:
        wish = read_preference(preference, None)
    write_json(place / WISH, {"preference": wish.w.tolist()})


def read_wish(folder: str | os.PathLike[str], m: int) -> list[float]:
    """The requested preference.

    Args:
        folder: The folder of the run.
        m: The number of objectives.

    Raises:
        DamagedFileError: The file is damaged, too large, or not a wish.
        FileNotFoundError: There is no such file.
    """
    path = Path(folder, WISH)
    return check_wish(check_json(read_plain(path, MOST_WISH), path), m)


def check_wish(found: object, m: int) -> list[float]:
    """The preference of a wish: m numbers in [0, 1] that sum to 1; anything else is a DamagedFileError."""
    w = found.get("preference") if isinstance(found, dict) and found.keys() == {"preference"} else None
    numbers = isinstance(w, list) and all(type(x) in {int, float} and 0 <= x <= 1 for x in w)
    if not isinstance(w, list) or not numbers or len(w) != m or abs(sum(w) - 1) > SLACK:
        rule = f"a wish must be a preference of {m} numbers of at least 0, of sum 1"
        raise DamagedFileError(f"{rule}; found {found!r:.120}")
    return [float(x) for x in w]
