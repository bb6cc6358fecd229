"""Checkpoints: files that are written whole or not at all, the state of a run, and checks that it fits."""

import ast
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.atomic import check_zip, sealed_zip
from equipoise.conversion.plan import record_dtype
from equipoise.errors import StateMismatchError
from equipoise.state import flatten, unflatten
from equipoise.train.history import History
from equipoise.train.parameters import as_shard, shard_of
from equipoise.weighting.protocol import duals

if TYPE_CHECKING:
    from equipoise.train.run import Run, Saved

__all__ = ["check_configuration", "check_tensors", "configuration", "describe", "load", "resume", "save", "state_of"]


def save(checkpoint: object, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint with `torch.save` and its SHA-256 to a temporary file, then rename it into place.

    If the write fails or the process dies, an existing file at `path` stays intact.

    Args:
        checkpoint: What to save, such as a dictionary of `state_dict()`s.
        path: The file; `load` reads it. An existing file keeps its permissions.

    Raises:
        OSError: The file cannot be written; the message names it.

    Examples:
        >>> import pathlib, tempfile
        >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "run.pt")
        ...     eq.train.save({"mol": mol.state_dict()}, path)
        ...     mol.load_state_dict(eq.train.load(path)["mol"])
    """
    with sealed_zip(path) as file:
        torch.save(checkpoint, file)


def load(path: str | os.PathLike[str], *, map_location: Any = None, mmap: bool = False) -> Any:  # noqa: ANN401
    """Read a file written by `save`: check its SHA-256, then `torch.load(path, weights_only=True)`.

    Args:
        path: The file.
        map_location: As in `torch.load`: where tensors go, such as "cpu".
        mmap: As in `torch.load`: tensors stay in the file until they are used.

    Raises:
        DamagedFileError: The file was altered or truncated, or is not a checkpoint; the message names it.
        FileNotFoundError: There is no such file.

    Examples:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "run.pt")
        ...     eq.train.save({"epoch": 3, "model": torch.nn.Linear(1, 1).state_dict()}, path)
        ...     eq.train.load(path)["epoch"]
        3
    """
    check_zip(path)
    return torch.load(path, map_location, weights_only=True, mmap=mmap)


# A run --------------------------------------------------------------------------------------

PLAIN = ("step", "compared", "accumulates", "steers")
"""Attributes of a run that a checkpoint has as they are."""


def state_of(run: "Run") -> dict[str, Any]:
    """Everything needed to resume a run."""
    run.settle()
    run.archive.settle()
    return _entries(run, run.archive.state())


def resume(run: "Run", state: Mapping[str, Any]) -> None:
    """Load what `state_of` returned; if it raises, nothing is changed."""
    like = run.archive.like()
    expected, here = _entries(run, like), run.saved(like)
    if state.keys() != expected.keys():
        raise StateMismatchError(f"checkpoint must have the entries {sorted(expected)}; found {sorted(state)}")
    compiled = "_orig_mod." in f"{state['configuration'].get('parameters')}{expected['configuration']['parameters']}"
    remedies = {"preference": BEGUN, **({"parameters": COMPILED} if compiled else {})}
    check_configuration(state["configuration"], expected["configuration"], remedies)
    found, owners = dict(state["tensors"]), _owners(run)
    found |= {key: shard_of(found[key], owner, key) for key, owner in owners.items() if key in found}
    numbers = flatten(here)
    check_tensors(found, numbers)
    unflatten(found, here)  # refuses other names and dtypes
    with run.exactly():
        own = {key: x if key in owners else x.to(numbers[key], copy=True) for key, x in found.items()}
        saved = unflatten(own, here)
        _check_values(state, saved, duals(run.weighting, saved.weighting), run.preferences[0][1])
        statistics = {name: x.to(run.device, copy=True) for name, x in state["statistics"].items()}
        history = History(run.labels)
        history.load(state["history"])
        preferences = [(step, [float(x) for x in w]) for step, w in state["preferences"]]
        run.archive.load(saved.conversion)
        for name in PLAIN:
            setattr(run, name, state[name])
        run.prefer(run.wish.w.new_tensor(preferences[-1][1]))
        run.load(saved)
    run.archive.recorded = state["recorded"]
    run.statistics, run.history, run.preferences = statistics, history, preferences


def _entries(run: "Run", conversion: Any) -> dict[str, Any]:  # noqa: ANN401
    """The entries of a checkpoint, with this state of the conversion."""
    tensors = flatten(run.saved(conversion))
    if run.params.sharded:
        tensors |= {key: as_shard(tensors[key], owner) for key, owner in _owners(run).items()}
    return {
        "configuration": {**configuration(run), **describe(preference=run.preferences[0][1])},
        **{name: getattr(run, name) for name in PLAIN},
        "recorded": run.archive.recorded,
        "preferences": [[step, list(w)] for step, w in run.preferences],
        "tensors": tensors,
        "statistics": dict(run.statistics),
        "history": run.history.rows(),
    }


def configuration(run: "Run") -> dict[str, str]:
    """What a run must have in common with another one to go on with its state, except the preference."""
    return describe(
        weighting=run.weighting,
        conversion=run.archive.conversion,
        names=run.wish.names,
        every=run.course.every,
        units=run.units.units,
        ideal=run.units.ideal,
        parameters={name: (tuple(p.shape), str(record_dtype(p))) for name, p in run.params().items()},
    )


def _owners(run: "Run") -> dict[str, Tensor]:
    """The parameters that tensors of a checkpoint are copies of, by the names of these tensors."""
    params, slots = run.params(), range(run.archive.conversion.copies or 0)
    return {f"conversion.slots.{j}.{name}": p for j in slots for name, p in params.items()}


# Checks -------------------------------------------------------------------------------------


def describe(**parts: object) -> dict[str, str]:
    """Settings as text, by dotted name; a dataclass is expanded to its name and its fields."""
    return {name: text for key, part in parts.items() for name, text in _describe(key, part)}


def _describe(name: str, value: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for field in dataclasses.fields(value):
            yield from _describe(f"{name}.{field.name}", getattr(value, field.name))
    else:
        yield name, repr(value.tolist() if isinstance(value, Tensor) else value)


BEGUN = "load with the preference that the run began with; set_preference changes it afterwards"
COMPILED = "one of the models is compiled: its names have the prefix _orig_mod."
"""What a message adds where settings differ."""


def check_configuration(
    found: Mapping[str, str], here: Mapping[str, str], remedies: Mapping[str, str] | None = None
) -> None:
    """Raise StateMismatchError, naming the settings that differ, unless a checkpoint was made with these settings.

    Args:
        found: The settings of the checkpoint.
        here: Those of this run.
        remedies: By setting, what the message adds if it differs.
    """
    absent = "nothing"
    names = [name for name in {**here, **found} if here.get(name) != found.get(name)]
    if names:
        differences = []
        for name in names:
            ours, theirs = _differing(here.get(name, absent), found.get(name, absent))
            differences.append(f"{name} must be {_shown(ours, theirs)}; found {_shown(theirs, ours)} in the checkpoint")
            differences += [(remedies or {})[name]] if name in (remedies or {}) else []
        raise StateMismatchError(f"checkpoint belongs to another configuration than this run: {', '.join(differences)}")


MANY = 4
"""Entries of a mapping that a message shows at most."""


def _differing(ours: str, theirs: str) -> tuple[str, str]:
    """Of two mappings as text, such as long lists of parameters, the entries that differ; other texts as they are."""
    if not (ours.startswith("{") and theirs.startswith("{")):
        return ours, theirs
    try:
        a, b = ast.literal_eval(ours), ast.literal_eval(theirs)
    except (ValueError, SyntaxError):
        return ours, theirs
    ours, theirs = (_few({key: x for key, x in one.items() if other.get(key) != x}) for one, other in ((a, b), (b, a)))
    return f"{ours} beside those in common", f"{theirs} beside those in common"


def _few(entries: dict[Any, Any]) -> str:
    more = f" and {len(entries) - MANY} more" if len(entries) > MANY else ""
    return f"{dict(islice(entries.items(), MANY)) or 'no others'}{more}"


_DIGITS = re.compile(r"\d+\.\d{7,}(e[+-]?\d+)?")


def _shown(text: str, other: str) -> str:
    """A setting with numbers rounded to six digits, unless that makes it equal to the other one."""
    a, b = (_DIGITS.sub(lambda number: f"{float(number[0]):.6g}", one) for one in (text, other))
    return a if a != b else text


def _check_values(state: Mapping[str, Any], saved: "Saved", weights: Tensor | None, first: list[float]) -> None:
    """Raise StateMismatchError for values that no run can produce.

    Args:
        state: The entries of a checkpoint.
        saved: Its tensors.
        weights: λ, (m,); None if the weighting has none.
        first: The preference that the run began with, (m,).
    """
    tensors = state["statistics"].values() if isinstance(state["statistics"], Mapping) else [None]
    coefficients = torch.stack([saved.coefficients.cpu(), saved.following.cpu()])
    sound = {
        "step": _is_count(state["step"]),
        "recorded": _is_count(state["recorded"]),
        "compared": state["compared"] in {"", "training", "given", "steered"},
        "accumulates": isinstance(state["accumulates"], bool),
        "steers": isinstance(state["steers"], bool),
        "coefficients": bool(torch.isfinite(coefficients).all()),
        "weights": weights is None or bool((weights >= 0).all() and (weights.sum() - 1).abs() < 1e-3),
        "statistics": all(isinstance(x, Tensor) for x in tensors),
        "preferences": _are_preferences(state["preferences"], first),
    }
    wrong = [name for name, is_sound in sound.items() if not is_sound]
    if wrong:
        shown = {"coefficients": coefficients.tolist(), "preferences": f"{state['preferences']!r:.80}"}
        shown |= {} if weights is None else {"weights": weights.tolist()}
        found = ", ".join(f"{name} = {shown.get(name, state.get(name))}" for name in wrong)
        raise StateMismatchError(f"checkpoint must have entries as a run has them; found {found}")


def _are_preferences(found: Any, first: list[float]) -> bool:  # noqa: ANN401
    """Whether these are pairs of a step and w, the first of them the start of the run."""
    try:
        sound = all(_is_count(step) and len(w) == len(first) for step, w in found) and list(found[0]) == [0, first]
        return sound and all(min(w) >= 0 and abs(sum(w) - 1.0) < 1e-3 for _, w in found)
    except (TypeError, ValueError, IndexError):
        return False


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_tensors(found: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Raise StateMismatchError unless the checkpoint's tensors have the shapes of those they replace."""
    for name, tensor in here.items():
        if name in found and found[name].shape != tensor.shape:
            raise StateMismatchError(
                f"checkpoint belongs to another configuration: {name} must have shape {tuple(tensor.shape)}; "
                f"found {tuple(found[name].shape)}"
            )
