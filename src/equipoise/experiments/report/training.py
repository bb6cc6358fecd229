"""Federated runs and monitoring logs on the page: curves, weights, and every seed's scores."""

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from equipoise.experiments import paper
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.rows import ALL
from equipoise.experiments.federated.scores import METRICS, Entry
from equipoise.experiments.federated.settings import EVERY, METHODS, SEEDS, Output
from equipoise.experiments.report.sources import Log, Sources
from equipoise.experiments.results import Cell, Result, alike, short
from equipoise.identity import digest
from equipoise.identity import spec as identity

__all__ = ["TaskRuns", "as_record", "log_record", "runs_by_task"]

Record = dict[str, Any]

CURVES = ("train_loss", "test_loss", "test_accuracy")


@dataclass(frozen=True)
class TaskRuns:
    """All runs on one task.

    Attributes:
        task: The task's name.
        title: The name, and how the runs differ from the named task.
        entries: The methods, those of tab:3 first.
        rounds: The number of rounds.
        options: Command-line options for this task and its seeds; None if no command can produce it.
        usual: Whether all clients take part, as in all items of `reproduce`.
        preference: The clients' preference, if it is not uniform.
    """

    task: str
    title: str
    entries: list[Entry]
    rounds: int
    options: list[str] | None
    usual: bool = True
    preference: str = ""

    def only(self, entries: list[Entry]) -> "TaskRuns":
        """The same with some of the methods."""
        return replace(self, entries=entries)

    def command(self, item: str, *words: str, tasked: bool = True) -> str:
        """The command that makes an item of `reproduce` for this task, or its runs if there is no such item.

        Args:
            item: Its name.
            *words: Further words of the command.
            tasked: Whether the item has several tasks, so that this one must be named.
        """
        if self.preference:
            return "equipoise reproduce table-preference"
        if self.options is None:
            other = self.task == "cifar-rotation" and " loss" in self.title.split(", ")[1]
            return "equipoise reproduce table-evaluation-data" if other else "made by a run of your own"
        # `reproduce` has only runs in which all clients take part, with the paper's values; `fl` has the others.
        if self.usual and not any(_VALUED.fullmatch(entry.name) for entry in self.entries):
            options = self.options if tasked else self.options[2:]  # they begin with the task
            return shlex.join(["equipoise", "reproduce", item, *options, *words])
        names = dict.fromkeys(entry.name for entry in self.entries)
        return "\n".join(shlex.join(["equipoise", "fl", *_asking_for(name), *self.options]) for name in names)

    @property
    def table_command(self) -> str:
        """The command for the table."""
        names = [entry.name for entry in self.entries if ", ratio" not in entry.name]
        some = [] if set(METHODS) <= set(names) <= set(ALL) else ["--methods", ",".join(map(_on_command_line, names))]
        return self.command(f"table-{self.task.partition('-')[0]}", *some)


def _asking_for(name: str) -> list[str]:
    """The options of `fl` for a method, which may have a value in its name."""
    valued = _VALUED.fullmatch(name)
    return ["--method", valued[1], "--value", valued[2]] if valued else ["--method", _on_command_line(name)]


def _on_command_line(name: str) -> str:
    """A method's name on the command line: a user's own needs its module, which cells do not hold."""
    return name if name in {*settings.known_names(), settings.MOMENTUM} else f"module:{name}"


_VALUED = re.compile(r"(.+) \(([\d.e+-]+)\)")


# ------------------------------------------------------------------------------- which cell is what
def runs_by_task(sources: Sources) -> list[TaskRuns]:
    """The federated cells, task by task; known tasks first, in their order."""
    # By the task's name and everything else but the method; then by method.
    groups: dict[tuple[str, str], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in sources.cells.cells:
        if cell.spec.get("experiment") == "federated":
            shared = {key: cell.spec.get(key) for key in ("task", "precision", "preference")}
            method = digest([cell.spec.get(key) for key in ("weighting", "transform", "conversion")])
            groups[cell.names.get("task", "?"), digest(shared)][method].append(cell)
    names = list(settings.tasks())
    runs = [_task_runs(task, list(found.values())) for (task, _), found in groups.items()]
    return sorted(runs, key=lambda run: (names.index(run.task) if run.task in names else 99, run.title))


def _task_runs(label: str, found: list[list[Cell]]) -> TaskRuns:
    """All runs on one task: `found` has the cells of one trajectory each."""
    first = found[0][0]
    task = label.partition(",")[0]
    usual = settings.tasks().get(task)
    of = first.spec["task"] if isinstance(first.spec.get("task"), dict) else {}
    rounds, who = int(of.get("rounds", 0)), of.get("participation", {})
    precision = str(first.spec.get("precision", "float32"))
    normal = "bfloat16" if settings.precision_of(task) == "bfloat16" else "float32"
    preference = ", ".join(f"{w:g}" for w in first.spec.get("preference", ()))
    part = {key: who[key] for key, value in (("fraction", 1.0), ("dropout", 0.0)) if who.get(key, value) != value}
    extra = [f"{rounds} rounds"] if rounds and (usual is None or rounds != usual.rounds) else []
    extra += [f"{key} {value:g}" for key, value in part.items()]
    extra += [f"preference {preference}"] if preference else []
    extra += [precision] if precision != normal else []
    claimed = usual is not None and of == identity(usual) and precision == normal and not preference
    # Of two with one name, as after an edit of the code, the latest is used.
    last = sorted(found, key=lambda cells: max(cell.when for cell in cells))
    named = {entry.name: entry for cells in last for entry in _entries(task, cells, claimed=claimed)}
    order = {name: k for k, name in enumerate((*ALL, settings.MOMENTUM))}
    entries = sorted(named.values(), key=lambda entry: order.get(entry.name, 99))
    options = None
    if usual is not None and label in {task, f"{task}, settings of the paper's text"} and not preference:
        seeds = max((entry.seeds for entry in entries), key=len, default=())
        options = ["--task", task, *(["--seeds", ",".join(map(str, seeds))] if seeds != SEEDS else [])]
        options += ["--rounds", str(rounds)] if rounds != usual.rounds else []
        options += ["--preset", "text"] if label != task else []
        options += ["--precision", precision] if precision != normal else []
        options += [word for key, value in part.items() for word in (f"--{key}", f"{value:g}")]
    if any("round_loss" in cell.result for cells in found for cell in cells):
        extra.append("training loss along the local steps")
    return TaskRuns(task, ", ".join([label, *extra]), entries, rounds, options, not part, preference)


def _entries(task: str, cells: Sequence[Cell], *, claimed: bool) -> list[Entry]:
    """The methods that share a trajectory; those that the paper does not have are not compared with it."""
    names, outputs = (cells[0].names.get(key, "?").split("; ") for key in ("method", "output"))
    by_seed: dict[int, Result] = {cell.spec["seed"]: {**cell.result, "made": cell.made} for cell in cells}
    results = alike(by_seed, names[0][:60])
    seeds = tuple(sorted(results, key=lambda s: (SEEDS.index(s) if s in SEEDS else 99, s)))
    entries = []
    for name, output in zip(names, outputs, strict=False):
        reported = output if all(output in result["outputs"] for result in results.values()) else "last"
        is_row = name in {*METHODS, settings.EXACT_FERERO, settings.MOMENTUM, "AdaLS", "AdaTCH"} and claimed
        same = is_row and identity(settings.row(name, task).method.weighting) == cells[0].spec["weighting"]
        theirs = paper.known(task, name) if same else {}
        of = seeds, tuple(results[seed] for seed in seeds)
        entries.append(Entry(task, name, cast("Output", reported), *of, theirs, claimed=same))
    return entries


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
    output = entry.output
    curves = [result["curves"][output] for result in entry.results]
    weights = entry.results[0]["coefficients"]
    archive = torch.tensor([result["archive"] for result in entry.results], dtype=torch.float64)
    record: Record = {
        "name": entry.name,
        "output": output,
        "seeds": list(entry.seeds),
        "scores": {metric: short(entry.values(metric)) for metric in METRICS},
        "rounds": curves[0]["round"],
        "weights": short(torch.tensor(weights), 3),
        "weight_rounds": [EVERY * (k + 1) for k in range(len(weights))],
        "archive": short(archive.mean(0), 4) if output == "adaptive" else [],
    }
    for key in CURVES:
        values = torch.tensor([curve[key] for curve in curves], dtype=torch.float64)
        record[key] = short(values.mean(0), 5)
        record[f"{key}_std"] = short(values.std(0, correction=0), 3)
    return record


def log_record(log: Log) -> Record:
    """A monitoring log for the page: entries such as `lambda/a` are the line a of the picture lambda."""
    groups: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    for name, values in log.values.items():
        group, _, objective = name.partition("/")
        groups[group][objective or group] = [None if v is None else short(v, 5) for v in values]
    return {"title": log.path.name, "steps": log.steps, "groups": groups}
