"""Shared by all commands: the console, common options, and parsers of their values."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich.console import Console

from equipoise import plugins
from equipoise.errors import require
from equipoise.experiments.item import Request
from equipoise.experiments.paper import Preset
from equipoise.federated import Precision
from equipoise.registry import Method, nearest, unknown

console = Console()

PresetOption = Annotated[
    str | None, typer.Option(help="published, if not given: what made the paper's numbers; text: what its text says.")
]
Out = Annotated[Path, typer.Option(help="Folder for pictures and for the cells of finished work.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; cpu if not given.")]
PrecisionOption = Annotated[str | None, typer.Option(help="float32, tf32 or bfloat16; tf32 on a GPU, else float32.")]
Data = Annotated[Path | None, typer.Option("--data", help="Look here for data first.")]
JSONFile = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds; the task's own if not given.")]
Yes = Annotated[bool, typer.Option("--yes", help="Compute without asking, however long it takes.")]
Methods = Annotated[
    str | None,
    typer.Option("--methods", help="Methods, separated by commas: rows of the table, or module:name of your own."),
]


def named(kind: str, name: str, known: Iterable[str]) -> str:
    """The known name, ignoring case, or an UnknownNameError that lists similar ones, or all if none is similar."""
    known = list(known)
    for key in known:
        if key.casefold() == name.casefold():
            return key
    rule = "a known name" if nearest(name, known) else f"one of {', '.join(known)}"
    raise unknown(f"{kind} must be {rule}", name, known)


def read_methods(
    text: str | None, known: Iterable[str]
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, Method], ...]]:
    """The names of methods, separated by commas: some of the known ones, and the user's own with the methods."""
    if text is None:
        return None, ()
    known, names, own = list(known), list[str](), dict[str, Method]()
    folded = {name.casefold(): name for name in known}
    for part in (part.strip() for part in text.split(",")):
        if part.casefold() in folded:
            names.append(folded[part.casefold()])
            continue
        name, method = plugins.find(part)
        require(name not in known and name not in own, "a method of your own must have a name of its own", repr(name))
        own[name] = method
        names.append(name)
    return tuple(names), tuple(own.items())


def read_method(text: str, known: Iterable[str]) -> tuple[str, tuple[tuple[str, Method], ...]]:
    """The name of one method, and the method itself if it is the user's own."""
    require("," not in text, "method must be one method", text)
    names, own = read_methods(text, known)
    return (names or (text,))[0], own


def read_floats(argument: str, text: str) -> list[float]:
    """Numbers, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{argument} must be numbers separated by commas; found {text!r}") from None


def read_integers(argument: str, text: str) -> tuple[int, ...]:
    """Different whole numbers, separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{argument} must be whole numbers separated by commas; found {text!r}") from None
    require(len(set(numbers)) == len(numbers), f"{argument} must differ from each other", repr(text))
    return numbers


def read_request(out: Path, *, device: str | None, precision: str | None, **more: Any) -> Request:
    """The request with the options that `fl` and `reproduce` share: `more` has attributes of it."""
    preset, data = more.get("preset"), more.get("data")
    require(preset is None or preset in get_args(Preset), "preset must be one of published, text", repr(preset))
    if device is not None:
        known = re.fullmatch(r"cpu|cuda(:\d+)?", device) is not None
        require(known, "device must be cpu, cuda or cuda:N", repr(device))
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        there = device == "cpu" or int(device.partition(":")[2] or 0) < count
        require(there, f"device must exist: torch finds {count or 'no'} GPU{'s' if count > 1 else ''}", device)
    more["precision"] = None if precision is None else named("precision", precision, get_args(Precision))
    require(data is None or data.is_dir(), "data must be a folder that exists", data)
    return Request(console, out, device=device, **more)


def check_files(out: Path, **files: Path | None) -> None:
    """Raise ValueError for a file in a missing folder, unless it is in the results folder, which is created."""
    for option, path in files.items():
        there = path is None or path.parent.is_dir() or path.absolute().is_relative_to(out.absolute())
        require(there, f"{option} must be a file in a folder that exists, or in {out}", path)
