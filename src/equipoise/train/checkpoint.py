"""Checkpoints: files that are written whole or not at all, and checks that they fit the run."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.atomic import check_zip, sealed_zip
from equipoise.errors import StateMismatchError

__all__ = ["check_configuration", "check_numbers", "check_tensors", "describe", "load", "save"]


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


def check_configuration(found: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise StateMismatchError, naming the settings that differ, unless a checkpoint was made with these settings."""
    absent = "nothing"
    names = [name for name in {**here, **found} if here.get(name) != found.get(name)]
    if names:
        pairs = ((n, here.get(n, absent), found.get(n, absent)) for n in names)
        differences = (
            f"{n} must be {_shown(ours, theirs)}; found {_shown(theirs, ours)} in the checkpoint"
            for n, ours, theirs in pairs
        )
        raise StateMismatchError(f"checkpoint belongs to another configuration than this run: {', '.join(differences)}")


_DIGITS = re.compile(r"\d+\.\d{7,}(e[+-]?\d+)?")


def _shown(text: str, other: str) -> str:
    """A setting with numbers rounded to six digits, unless that makes it equal to the other one."""
    a, b = (_DIGITS.sub(lambda number: f"{float(number[0]):.6g}", one) for one in (text, other))
    return a if a != b else text


def check_numbers(state: Mapping[str, Any], coefficients: Tensor, following: Tensor, weights: Tensor | None) -> None:
    """Raise StateMismatchError for values that no run can produce.

    Args:
        state: The entries of a checkpoint.
        coefficients: Those of its last step, (m,).
        following: Those of the next step, (m,).
        weights: λ, (m,); None if the weighting has none.
    """
    tensors = state["statistics"].values() if isinstance(state["statistics"], Mapping) else [None]
    sound = {
        "step": _is_count(state["step"]),
        "recorded": _is_count(state["recorded"]),
        "compared": state["compared"] in {"", "training", "given", "steered"},
        "accumulates": isinstance(state["accumulates"], bool),
        "steers": isinstance(state["steers"], bool),
        "coefficients": bool(torch.isfinite(torch.cat([coefficients.cpu(), following.cpu()])).all()),
        "weights": weights is None or bool((weights >= 0).all() and (weights.sum() - 1).abs() < 1e-3),
        "statistics": all(isinstance(x, Tensor) for x in tensors),
    }
    wrong = [name for name, is_sound in sound.items() if not is_sound]
    if wrong:
        shown = {"coefficients": [coefficients.tolist(), following.tolist()]}
        shown |= {} if weights is None else {"weights": weights.tolist()}
        found = ", ".join(f"{name} = {shown.get(name, state.get(name))}" for name in wrong)
        raise StateMismatchError(f"checkpoint must have entries as a run has them; found {found}")


def check_preferences(found: object, first: list[float]) -> list[tuple[int, list[float]]]:
    """The preferences of a checkpoint with their steps, or StateMismatchError.

    Args:
        found: Pairs of a step and w.
        first: The w that the run began with, (m,).
    """
    try:
        read = [(step, [float(x) for x in w]) for step, w in found]  # type: ignore[attr-defined]
        sound = all(_is_count(step) and len(w) == len(first) for step, w in read) and read[0] == (0, first)
        sound = sound and all(min(w) >= 0 and abs(sum(w) - 1.0) < 1e-3 for _, w in read)
    except (TypeError, ValueError, IndexError):
        sound = False
    if not sound:
        raise StateMismatchError(f"checkpoint must have entries as a run has them; found preferences = {found!r:.80}")
    return read


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
