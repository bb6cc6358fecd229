"""The federated runs of the page, task by task: curves, archives, weights, and every seed's scores."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch

from equipoise.conversion import Last
from equipoise.experiments import federated, paper
from equipoise.experiments.cells import Result, alike
from equipoise.experiments.federated import EVERY, EXACT_FERERO, METHODS, MOMENTUM, Output, Preset, Row
from equipoise.experiments.federated_tables import METRICS, Entry
from equipoise.experiments.plan import ALL, TABLES
from equipoise.experiments.report.numbers import short
from equipoise.experiments.report.sources import Log, Sources
from equipoise.registry import Method, methods
from equipoise.weighting import Linear, Relative

__all__ = ["TaskRuns", "as_record", "log_record", "runs_by_task"]

Record = dict[str, Any]
Trajectory = tuple[str, str]
"""Weighting and transform of a run, as its cell names them."""

CURVES = ("train_loss", "test_loss", "test_accuracy")
PRESETS: tuple[Preset, ...] = ("published", "text")


@dataclass(frozen=True)
class TaskRuns:
    """All that was run on one task.

    Attributes:
        title: The task's name, and what is not as the name says.
        entries: The methods, those of tab:3 first.
        rounds: How many.
        options: Words that make commands ask for this task and its seeds; None if no command does.
        usual: Whether everybody takes part, as in all items of `reproduce`.
        item: The one item of `reproduce` that has it, if it is the only one.
    """

    title: str
    entries: list[Entry]
    rounds: int
    options: list[str] | None
    usual: bool = True
    item: str | None = None

    @property
    def in_items(self) -> bool:
        """Whether `reproduce` can be asked for it, or only `fl`."""
        return self.usual and not any(_VALUED.fullmatch(entry.row.name) for entry in self.entries)

    def only(self, entries: list[Entry]) -> "TaskRuns":
        """The same with some of the methods."""
        return replace(self, entries=entries)

    def command(self, item: str, *words: str, tasked: bool = True) -> str:
        """The command that makes an item of `reproduce` for this task, or its runs if there is no such item.

        Args:
            item: Its name.
            *words: More of the command.
            tasked: Whether the item has several tasks, of which this one is to be named.
        """
        if self.item is not None:
            return shlex.join(["equipoise", "reproduce", self.item])
        if self.options is None:
            return "made by a run of your own, with settings that no command has"
        if self.in_items:
            options = self.options if tasked else self.options[2:]  # they begin with the task
            return shlex.join(["equipoise", "reproduce", item, *options, *words])
        names = dict.fromkeys(entry.row.name for entry in self.entries)
        return "\n".join(shlex.join(["equipoise", "fl", *_asking_for(name), *self.options]) for name in names)

    @property
    def table_command(self) -> str:
        """The command for the table."""
        names = [entry.row.name for entry in self.entries]
        data = self.title.partition("-")[0]
        made = TABLES["table-cifar"] if data == "cifar" else ALL
        some = [] if set(METHODS) <= set(names) <= set(made) else ["--methods", ",".join(names)]
        return self.command(f"table-{data}" if data in {"mnist", "cifar"} else "table-digits", *some)


def _asking_for(name: str) -> list[str]:
    """The words that ask `fl` for a row, which may have a value in its name."""
    valued = _VALUED.fullmatch(name)
    return ["--method", valued[1], "--value", valued[2]] if valued else ["--method", name]


_VALUED = re.compile(r"(.+) \(([\d.e-]+)\)")


# ------------------------------------------------------------------------------- which cell is what
class _Asked(NamedTuple):
    """What federated cells have in common that belong together."""

    task: str
    precision: str
    preference: str
    """Empty if uniform."""


def runs_by_task(sources: Sources) -> list[TaskRuns]:
    """The federated cells, task by task; known tasks first, in their order."""
    groups: dict[_Asked, dict[Trajectory, dict[int, Result]]] = defaultdict(lambda: defaultdict(dict))
    for spec, result in sources.cells.cells:
        if spec.get("experiment") != "federated":
            continue
        wanted = spec.get("preference")
        preference = ", ".join(map(str, wanted)) if isinstance(wanted, list) else ""
        asked = _Asked(str(spec.get("task")), str(spec.get("precision")), preference)
        groups[asked][str(spec.get("weighting")), str(spec.get("transform"))][spec["seed"]] = result
    runs = [
        _task_runs(asked, {of: alike(seeds, of[0][:60]) for of, seeds in found.items()})
        for asked, found in groups.items()
    ]
    names = list(federated.tasks())
    return sorted(
        runs, key=lambda run: (next((k for k, n in enumerate(names) if run.title.startswith(n)), 99), run.title)
    )


def _task_runs(asked: _Asked, found: dict[Trajectory, dict[int, Result]]) -> TaskRuns:
    rounds = _number(_ROUNDS.search(asked.task))
    plain = _plain(asked.task)
    known = _tasks().get(plain)
    name, preset = known or (None, PRESETS[0])
    entries = []
    for row, trajectory in _named_rows(name, preset, found):
        results = found[trajectory]
        if any(row.output not in result["outputs"] for result in results.values()):  # a cell of an older version
            row = Row(f"{row.name}, adaptive", row.method, "adaptive")  # noqa: PLW2901
        seeds = tuple(sorted(results, key=lambda s: (federated.SEEDS.index(s) if s in federated.SEEDS else 99, s)))
        theirs = None if name is None else paper.known(name, row.name)
        usual = name is not None and rounds == federated.tasks(preset)[name].rounds and preset == "published"
        whole = usual and asked.precision == _usual_precision(name) and not _unusual(asked.task)
        whole = whole and not asked.preference and _other_loss(asked.task, name, preset) is None
        entries.append(Entry(name or "", row, seeds, tuple(results[s] for s in seeds), theirs, claimed=whole))
    own = name is None or asked.preference or _other_loss(asked.task, name, preset) is not None
    options = None if name is None or own else _options(name, preset, rounds, asked, entries)
    title = _title(name, preset, rounds, asked)
    if any("round_loss" in result for results in found.values() for result in results.values()):
        title += ", training loss along the local steps"
    item = "table-preference" if asked.preference and name == "cifar-two" else None
    if name == "cifar-rotation" and _other_loss(asked.task, name, preset) is not None:
        item = "table-evaluation-data"
    return TaskRuns(title, entries, rounds, options, not _unusual(asked.task), item)


_ROUNDS = re.compile(r"rounds=(\d{1,6})\b")
_LOSS = re.compile(r"loss='([^']*)'")
_DOMINANCE = re.compile(r", dominance='([^']*)'")
_PARTICIPATION = re.compile(r"participation=Participation\(([^)]*)\)")
_USUAL = ("fraction=1.0", "dropout=0.0")


def _number(match: re.Match[str] | None) -> int:
    return int(match[1]) if match else 0


def _unusual(task: str) -> str:
    """Who takes part, if not everybody."""
    who = _PARTICIPATION.search(task)
    return ", ".join(part for part in who[1].split(", ") if part not in _USUAL) if who else ""


def _plain(task: str) -> str:
    """A task without rounds, participation and sources of losses."""
    return _DOMINANCE.sub("", _LOSS.sub("", _PARTICIPATION.sub("", _ROUNDS.sub("", task))))


def _other_loss(task: str, name: str | None, preset: Preset) -> str | None:
    """Where the losses come from that feed the server, or its dominance test, if not from where the task has them."""
    found, compared = _LOSS.search(task), _DOMINANCE.search(task)
    if name is not None and compared is not None:
        return f"{compared[1]} loss for dominance"
    usual = name is None or found is None or found[1] == federated.tasks(preset)[name].loss
    return None if usual or found is None else f"{found[1]} loss"


@cache
def _tasks() -> dict[str, tuple[str, Preset]]:
    """The names of tasks, by what cells hold, plain."""
    return {
        _plain(repr(task)): (name, preset)
        for preset in reversed(PRESETS)
        for name, task in federated.tasks(preset).items()
    }


def _title(name: str | None, preset: Preset, rounds: int, asked: _Asked) -> str:
    if name is None:
        return f"another task: {asked.task[:80]}"
    extra = [f"{rounds} rounds"] if rounds != federated.tasks(preset)[name].rounds else []
    extra += ["settings of the paper’s text"] if preset == "text" else []
    extra += [_unusual(asked.task).replace("=", " ")] if _unusual(asked.task) else []
    other = _other_loss(asked.task, name, preset)
    extra += [other] if other is not None else []
    extra += [f"preference {asked.preference}"] if asked.preference else []
    extra += [asked.precision] if asked.precision != "float32" else []
    return ", ".join([name, *extra])


def _usual_precision(name: str | None) -> str:
    """What cells of a task name if nothing else was asked for."""
    return "bfloat16" if name is not None and federated.precision_of(name) == "bfloat16" else "float32"


def _options(name: str, preset: Preset, rounds: int, asked: _Asked, entries: Sequence[Entry]) -> list[str]:
    words = ["--task", name]
    seeds = max((entry.seeds for entry in entries), key=len, default=())
    words += ["--seeds", ",".join(map(str, seeds))] if seeds != federated.SEEDS else []
    words += ["--rounds", str(rounds)] if rounds != federated.tasks(preset)[name].rounds else []
    words += ["--preset", preset] if preset != "published" else []
    words += ["--precision", asked.precision] if asked.precision != _usual_precision(name) else []
    for part in _unusual(asked.task).split(", ") if _unusual(asked.task) else ():
        key, _, value = part.partition("=")
        words += [f"--{key}", value]
    return words


def _named_rows(
    name: str | None, preset: Preset, found: dict[Trajectory, dict[int, Result]]
) -> Iterator[tuple[Row, Trajectory]]:
    """The rows that trajectories are: several if methods share one, those of tab:3 before all others."""
    left = dict.fromkeys(found)
    if name is not None:
        candidates = [federated.row(method, name, preset) for method in (*METHODS, EXACT_FERERO, MOMENTUM)]
        for row in candidates:
            if _trajectory(row) in found:
                left.pop(_trajectory(row), None)
                yield row, _trajectory(row)
        rest = set(left)
        valued = [
            Row(f"{m} ({value:g})", row.method, row.output)
            for m, values in federated.ATTEMPTED.items()
            for value in values
            for row in [federated.row(m, name, preset, value)]
        ]
        others = [federated.row(m, name, preset) for m in methods() if m not in METHODS]
        others += [_by_ratios(federated.row(m, name, preset), of) for m in paper.RATIOS for of in PRESETS if m != "LS"]
        # The registry has several names for some methods: the first is enough.
        once = {(_trajectory(row), row.output): row for row in reversed([*valued, *others])}
        for (trajectory, _), row in reversed(once.items()):
            if trajectory in rest:
                left.pop(trajectory, None)
                yield row, trajectory
    for trajectory in left:
        both: tuple[Output, ...] = ("last", "adaptive")
        for output in both:
            # What it is cannot be told from its text; only the name is shown.
            yield Row(f"{trajectory[0][:60]}, {output}", Method(Linear(), Last()), output), trajectory


def _by_ratios(row: Row, preset: Preset) -> Row:
    found = federated.by_ratios(row, preset)
    first = isinstance(found.method.weighting, Relative) and found.method.weighting.span == "first"
    return replace(found, name=f"{row.name}, {'ratio in the first round alone' if first else 'ratios'}")


def _trajectory(row: Row) -> Trajectory:
    return repr(row.method.weighting), repr(row.method.transform)


# ------------------------------------------------------------------------------- what is drawn
def as_record(runs: TaskRuns) -> Record:
    """A task for the page."""
    return {
        "title": runs.title,
        "rounds": runs.rounds,
        "methods": [_method(entry) for entry in runs.entries],
        "commands": {
            "curves": runs.command("fig-curves"),
            "weights": runs.command("fig-weights"),
            "box": runs.command("fig-box"),
            "parity": runs.command("fig-parity"),
            "archive": runs.table_command,
        },
    }


def _method(entry: Entry) -> Record:
    output = entry.row.output
    curves = [result["curves"][output] for result in entry.results]
    weights = entry.results[0]["coefficients"]
    record: Record = {
        "name": entry.row.name,
        "output": output,
        "seeds": list(entry.seeds),
        "scores": {metric: short(entry.values(metric)) for metric in METRICS},
        "rounds": curves[0]["round"],
        "weights": short(torch.tensor(weights), 3),
        "weight_rounds": [EVERY * (k + 1) for k in range(len(weights))],
        "archive": _mean([result["archive"] for result in entry.results]) if output == "adaptive" else [],
    }
    for key in CURVES:
        values = torch.tensor([curve[key] for curve in curves], dtype=torch.float64)
        record[key] = short(values.mean(0), 5)
        record[f"{key}_std"] = short(values.std(0, correction=0), 3)
    return record


def _mean(values: list[list[float]]) -> Any:  # noqa: ANN401
    return short(torch.tensor(values, dtype=torch.float64).mean(0), 4)


def log_record(log: Log) -> Record:
    """A monitoring log for the page: entries such as `lambda/a` are the line a of the picture lambda."""
    groups: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    for name, values in log.values.items():
        group, _, objective = name.partition("/")
        groups[group][objective or group] = [None if v is None else short(v, 5) for v in values]
    return {"title": log.path.name, "steps": log.steps, "groups": groups}
