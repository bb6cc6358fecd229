"""Section 4.2 and appendix B.2 of the paper: the federated tasks, and the settings of every method on each.

Tasks and rows are data. There are two presets: `published`, the settings that produced the paper's tables, and
`text`, those that its text gives. docs/federated.md explains the differences.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from equipoise import weighting
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.experiments import paper
from equipoise.experiments.paper import Preset
from equipoise.experiments.results import CellStore, Result, Spec, alike
from equipoise.federated import Dense, LocalWork, LossSource, Precision, ResNet18, ResNet20, Task, outputs
from equipoise.federated.splits import PartialClass, Rotation, Split
from equipoise.identity import spec as identity
from equipoise.registry import Method, Named, methods, unknown
from equipoise.simplex import Entropic, Euclidean
from equipoise.transform import PropFair

Output = Literal["last", "average", "adaptive", "own"]
"""The outputs of a trajectory; "own" is the method's conversion, if it is not one of the other three."""
Preference = tuple[float, ...]
EVALUATION_DATA = ("mini", "full", "val", "val for dominance")
"""The data for the losses used by λ and the dominance test (tab:ablation2), or by the dominance test alone."""

SEEDS = (0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003)
METHODS = (
    "LS", "qFFL", "PropFair", "FedMGDA+", "FedFV", "TCH", "STCH", "EPO", "FERERO", "ExcessMTL", "AdaExcessMTL",
    "OMDgd-TCH", "AdaOMDgd-TCH", "OMDeg-TCH", "AdaOMDeg-TCH",
)  # fmt: skip
"""The rows of tab:3."""
EXACT_FERERO = "FERERO (exact)"
"""An exact FERERO besides the paper's, whose settings keep it close to LS."""

MOMENTUM = "STCH w/ momentum"

EVERY = 5
"""Rounds between two evaluations, for the curves."""
CIFAR_PRECISION: Precision = "bfloat16"
"""The default precision of the layers' products on CIFAR-10: it takes half the time of TF32."""
PREFERENCES: tuple[Preference, ...] = ((0.5, 0.5), (0.75, 0.25), (0.25, 0.75))
"""The preferences of the two clients (tab:new)."""


# ------------------------------------------------------------------------------- tasks
def tasks(preset: Preset = "published") -> Named[Task]:
    """Every task by its name on the command line."""
    published = preset == "published"
    changes: dict[str, Any] = _PUBLISHED if published else {}
    deep = replace(_CIFAR, model=ResNet20() if published else ResNet18())
    named: dict[str, Task] = {}
    for data, base, turns in (("digits", _DIGITS, (1, 1, 2)), ("mnist", _MNIST, (1, 1, 2)), ("cifar", deep, (2, 2, 2))):
        splits: dict[str, Split] = {"rotation": Rotation((0,) * 7 + turns)}
        splits |= {"class2": PartialClass(2), "class5": PartialClass(5)}
        named |= {f"{data}-{kind}": replace(base, split=split, **changes) for kind, split in splits.items()}
    named["cifar-two"] = replace(deep, split=Rotation((0, 2) if published else (0, 1)), **changes)
    return Named(named, "task")


_DIGITS = Task("digits", model=Dense((64, 50, 10)), rounds=100)
_MNIST = Task("mnist", model=Dense((784, 200, 10)), rounds=300)
_CIFAR = Task("cifar10", work=LocalWork(epochs=1, batch_size=100), rounds=45)
_PUBLISHED = {"loss": "trajectory", "average": "after", "batch_norm": "batch"}


def seeds_of(task: str) -> tuple[int, ...]:
    """The seeds of a task: the paper's ten, or the first three of them where not all were run."""
    return SEEDS if task.startswith("mnist") or task == "cifar-class2" else SEEDS[:3]


def precision_of(task: str, asked: Precision | None = None) -> Precision | None:
    """The precision of a task: the requested one, else `CIFAR_PRECISION` or the engine's choice."""
    return asked or (CIFAR_PRECISION if task.startswith("cifar") else None)


def evaluated_on(task: Task, data: str, preset: Preset = "published") -> Task:
    """A task whose losses for λ and dominance come from other data: an ablation of the paper.

    "mini": mini-batches, as everywhere; "full": all training samples of a client; "val": half of its test samples (it
    is then tested on the other half). With "val for dominance" λ still uses mini-batches.
    """
    mini, full, val = _SOURCES[preset]
    if data == "val for dominance":
        return replace(task, loss=mini, dominance=val)
    return replace(task, loss={"mini": mini, "full": full, "val": val}[data])


_SOURCES: dict[Preset, tuple[LossSource, LossSource, LossSource]] = {
    "published": ("trajectory", "full-updated", "validation-trajectory"),
    "text": ("received", "full", "validation"),
}


# ------------------------------------------------------------------------------- rows
@dataclass(frozen=True)
class Run:
    """A row of a table: a method on a task under the paper's name, for some seeds."""

    name: str
    method: Method
    task_name: str
    task: Task
    preference: Preference | None = None
    column: str = ""
    """What distinguishes it from other runs of the same method, if anything."""
    seeds: tuple[int, ...] | None = None
    """The seeds; None for the task's own."""
    precision: Precision | None = None
    """The precision of the layers' products; None for the task's own."""
    shared: tuple[tuple[str, str], ...] = ()
    """The names and outputs of all rows that share this trajectory; empty for one row."""

    @property
    def output(self) -> Output:
        """The output that is reported."""
        return reported(self.method)

    @property
    def title(self) -> str:
        """The method's name, with its column."""
        return f"{self.name}, {self.column}" if self.column else self.name

    @property
    def to_run(self) -> tuple[int, ...]:
        """The seeds to compute, if they are missing."""
        return seeds_of(self.task_name) if self.seeds is None else self.seeds

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The name and the output of every row with this trajectory."""
        of, name = self.method.weighting, self.name
        if isinstance(of, weighting.Relative):
            name += ", ratio in the first round alone" if of.span == "first" else ", ratios"
        return self.shared or ((name, self.output),)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its cells."""
        method, output = map("; ".join, zip(*self.rows, strict=True))
        return {"task": label_of(self.task_name, self.task), "method": method, "output": output}

    @property
    def label(self) -> str:
        """A description in one line."""
        wanted = "" if self.preference is None else f", preference {', '.join(f'{w:g}' for w in self.preference)}"
        clients = "" if self.method.transform is None else f" of {self.method.transform}"
        other = "" if self.task.dominance is None else f", {self.task.dominance} loss for dominance"
        return f"{self.task_name}: {self.method.weighting}{clients}{wanted}, {self.task.loss} loss{other}"

    def asked(self, rounds: int | None, seeds: tuple[int, ...] | None, precision: Precision | None) -> "Run":
        """The same with the requested rounds, seeds and precision; None keeps the task's own."""
        return replace(self, task=sized(self.task, rounds), seeds=seeds, precision=precision)

    def spec(self, seed: int) -> Spec:
        """The specification of one seed's cell."""
        return spec(self.task, self.method, seed, precision_of(self.task_name, self.precision), self.preference)

    @property
    def specs(self) -> list[Spec]:
        """Those of the cells to compute, if they are missing."""
        return [self.spec(seed) for seed in self.to_run]

    def found(self, store: CellStore) -> dict[int, Result]:
        """The results by seed. On CIFAR-10 all of the paper's seeds that have a cell, if none are named."""
        seeds = SEEDS if self.seeds is None and self.task_name.startswith("cifar") else self.to_run
        results = {seed: store.read(self.spec(seed)) for seed in seeds}
        return alike({seed: result for seed, result in results.items() if result is not None}, self.label)


def spec(
    task: Task, method: Method, seed: int, precision: Precision | None = None, preference: Preference | None = None
) -> Spec:
    """Everything that determines a cell's result.

    The device is not part of it, nor whether products are in float32 or TF32: these affect only rounding. Settings that
    most cells do not have are included only where they are set.
    """
    more: Spec = {}
    if preference is not None:
        more["preference"] = list(preference)
    if reported(method) == "own":
        more["conversion"] = identity(method.conversion)
    if costly(task):
        more["evaluated"] = {"parts": ["test"], "first": True}
    return {
        "experiment": "federated",
        "task": identity(task),
        "weighting": identity(method.weighting),
        "transform": identity(method.transform),
        "seed": seed,
        "precision": "bfloat16" if precision == "bfloat16" else "float32",
        "every": every(task),
        **more,
    }


def every(task: Task) -> int:
    """The rounds between two evaluations of the outputs: only at the end if each needs to be recalibrated."""
    return task.rounds if costly(task) and task.batch_norm == "recalibrated" else EVERY


def costly(task: Task) -> bool:
    """Whether evaluation on all training samples every few rounds would take as long as the rounds."""
    return task.data == "cifar10"


def tuned(name: str, task: str) -> float | None:
    """The value that tab:2 gives a method on a task; None if the method has no setting.

    Digits take the values of MNIST, two clients those of rotation.
    """
    return paper.TUNED[task.replace("digits", "mnist").replace("two", "rotation")].get(name)


def row(
    name: str,
    task: str,
    preset: Preset = "published",
    value: float | None = None,
    own: Mapping[str, Method] | None = None,
) -> Run:
    """A method with its settings in tab:3 on a task.

    Args:
        name: A name in METHODS, EXACT_FERERO or MOMENTUM; any other method has the settings of the registry.
        task: A name in `tasks`.
        preset: Which settings.
        value: Its hyper-parameter, instead of the best one in tab:2.
        own: The user's own methods, by name.
    """
    of = tasks(preset)[task]
    if own and name in own:
        return Run(name, own[name], task, of)
    weightings, others = _weightings(task, preset), methods()
    if name not in {*METHODS, EXACT_FERERO, MOMENTUM}:
        if name not in others:
            raise unknown("method must be a known name", name, known_names())
        return Run(name, others[name], task, of)
    known = tuned(name, task) if value is None else value
    x = math.nan if known is None else known  # methods without a setting do not use it
    kind, transform = name.removeprefix("Ada"), None
    if name == "PropFair":
        transform = PropFair(x, 1.0, "linear") if preset == "published" else PropFair(x)
    conversion: Conversion[Any] = Last()
    if kind in {"ExcessMTL", "OMDgd-TCH", "OMDeg-TCH"}:
        conversion = Average() if kind == name else Adaptive()
    return Run(name, Method(weightings[kind](x), conversion, transform), task, of)


def _weightings(task: str, preset: Preset) -> dict[str, Callable[[float], weighting.Weighting[Any]]]:
    """The weightings of tab:3 on a task, as functions of the setting in tab:2, which only some use."""
    of, published = tasks(preset)[task], preset == "published"
    preferred = published and task == "cifar-two"  # the only runs of the paper with a preference
    m = of.split.clients  # the paper lists s in λ ← Π(λ + s f), with w_i = 1/m absorbed; gains here are w∘f
    released = weighting.DualDescent(rate=1e-5, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)

    def excess(x: float) -> weighting.ExcessRisk:
        if preferred:  # here w is not uniform and enters the exponent
            return weighting.ExcessRisk(x * m, "simultaneous")
        return weighting.ExcessRisk(x, "simultaneous", "gradients") if published else weighting.ExcessRisk(x * m)

    def momentum(x: float) -> weighting.Momentum[Any]:
        return weighting.Momentum(weighting.SmoothTchebycheff(x), "released" if published else "bounded_drift")

    return {
        "LS": lambda _: weighting.Linear(),
        "qFFL": lambda x: weighting.QFFL(x, of.work.step_size),
        "PropFair": lambda _: weighting.Linear(),
        "FedMGDA+": lambda x: weighting.FedMGDAPlus(x, "models"),
        "FedFV": lambda x: weighting.FedFV(x, int(tuned("FedFV τ", task) or 0)),
        # In the paper's runs with a preference, the server moves to the worst client's model, whatever w is.
        "TCH": lambda _: weighting.Tchebycheff("unit") if preferred else weighting.Tchebycheff(),
        "STCH": weighting.SmoothTchebycheff,
        MOMENTUM: momentum,
        "EPO": lambda _: weighting.EPO(normalize=False, fallback="preference") if published else weighting.EPO(),
        "FERERO": lambda _: weighting.FERERO(target="direct", solver=released) if published else weighting.FERERO(),
        EXACT_FERERO: lambda _: weighting.FERERO(),
        "ExcessMTL": excess,
        "OMDgd-TCH": lambda x: weighting.OMD(x * m, Euclidean()),
        "OMDeg-TCH": lambda x: weighting.OMD(x * m, Entropic()),
    }


def by_ratios(row: Run, preset: Preset = "published") -> Run:
    """A row whose weights are updated with the ratios f_i/f_i⁽⁰⁾ (tab:ratio).

    LS has no weights to update. In `published`, AdaOMDeg uses the ratio only in the first round.
    """
    if isinstance(row.method.weighting, weighting.Linear):
        return row
    span: Literal["always", "first"] = "always"
    if preset == "published" and row.name == "AdaOMDeg-TCH":
        span = "first"
    return replace(row, method=replace(row.method, weighting=weighting.Relative(row.method.weighting, span)))


def known_names() -> tuple[str, ...]:
    """Every method that `row` knows, those of tab:3 first."""
    return tuple(dict.fromkeys((*METHODS, EXACT_FERERO, *methods())))


def title(task: str) -> str:
    """A task in words, for figures."""
    data, _, kind = task.partition("-")
    split = {"rotation": "some clients rotated", "two": "two clients"}.get(kind)
    split = split or f"{kind.removeprefix('class')} classes per client"
    data = {"mnist": "MNIST", "cifar": "CIFAR-10"}.get(data, data)
    return f"{data}, {split}"


def label_of(name: str, task: Task) -> str:
    """The label of a task derived from the named one; ignores rounds and participation."""
    for preset, suffix in (("published", ""), ("text", ", settings of the paper's text")):
        usual = tasks(cast("Preset", preset))[name]
        same = replace(task, rounds=usual.rounds, participation=usual.participation)
        if same == usual:
            return f"{name}{suffix}"
        if replace(same, loss=usual.loss, dominance=usual.dominance) == usual:
            other = f"{task.loss} loss" if task.dominance is None else f"{task.dominance} loss for dominance"
            return f"{name}, {other}{suffix}"
    return f"{name}, other settings"


def sized(task: Task, rounds: int | None) -> Task:
    """A task with another number of rounds, if one is given."""
    return task if rounds is None else replace(task, rounds=rounds)


def reported(method: Method) -> Output:
    """The output that is a method's answer."""
    return cast("Output", next(name for name, of in outputs(method).items() if of == method.conversion))
