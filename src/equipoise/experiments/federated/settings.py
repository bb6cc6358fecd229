"""Section 4.2 and appendix B.2 of the paper: the federated tasks, and the settings of every method on each.

Tasks and rows are data. There are two presets: `published`, the settings that produced the paper's tables, and
`text`, those that its text gives. docs/federated.md explains the differences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from equipoise.conversion import Adaptive, Average, Last
from equipoise.errors import require
from equipoise.experiments.paper import Preset
from equipoise.federated import (
    Dense,
    LocalWork,
    LossSource,
    PartialClass,
    Precision,
    ResNet18,
    ResNet20,
    Rotation,
    Task,
    outputs,
)
from equipoise.registry import Method, Named, methods, unknown
from equipoise.simplex import Entropic, Euclidean
from equipoise.transform import PropFair
from equipoise.weighting import (
    EPO,
    FERERO,
    OMD,
    QFFL,
    DualDescent,
    ExcessRisk,
    FedFV,
    FedMGDAPlus,
    Linear,
    Momentum,
    Relative,
    SmoothTchebycheff,
    Tchebycheff,
)

Output = Literal["last", "average", "adaptive", "own"]
"""The outputs of a trajectory; "own" is the method's conversion, if it is not one of the other three."""
Preference = tuple[float, ...]
EvaluationData = Literal["mini", "full", "val", "val for dominance"]
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
    quarter, half = (0,) * 7 + (1, 1, 2), (0,) * 7 + (2, 2, 2)

    def task(data: str, **changes: Any) -> Task:
        return replace(_BASE[data], **changes, **(_PUBLISHED if published else {}))

    convolutional = ResNet20() if published else ResNet18()
    return Named(
        {
            "digits-rotation": task("digits", split=Rotation(quarter)),
            "digits-class2": task("digits", split=PartialClass(2)),
            "digits-class5": task("digits", split=PartialClass(5)),
            "mnist-rotation": task("mnist", split=Rotation(quarter)),
            "mnist-class2": task("mnist", split=PartialClass(2)),
            "mnist-class5": task("mnist", split=PartialClass(5)),
            "cifar-rotation": task("cifar10", split=Rotation(half), model=convolutional),
            "cifar-class2": task("cifar10", split=PartialClass(2), model=convolutional),
            "cifar-class5": task("cifar10", split=PartialClass(5), model=convolutional),
            "cifar-two": task("cifar10", split=Rotation((0, 2) if published else (0, 1)), model=convolutional),
        },
        "task",
    )


_BASE = {
    "digits": Task("digits", model=Dense((64, 50, 10)), rounds=100),
    "mnist": Task("mnist", model=Dense((784, 200, 10)), rounds=300),
    "cifar10": Task("cifar10", work=LocalWork(epochs=1, batch_size=100), rounds=45),
}
_PUBLISHED: dict[str, Any] = {"loss": "trajectory", "average": "after", "batch_norm": "batch"}


def seeds_of(task: str) -> tuple[int, ...]:
    """The seeds of a task: the paper's ten, or the first three of them where not all were run."""
    return SEEDS if task.startswith("mnist") or task == "cifar-class2" else SEEDS[:3]


def precision_of(task: str, asked: Precision | None = None) -> Precision | None:
    """The precision of a task: the requested one, else `CIFAR_PRECISION` or the engine's choice."""
    return asked or (CIFAR_PRECISION if task.startswith("cifar") else None)


def evaluated_on(task: Task, data: EvaluationData, preset: Preset = "published") -> Task:
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
class Row:
    """One row of tab:3 on one task.

    Attributes:
        name: The paper's name of the method.
        method: The method.
        output: The output that is reported: the paper's choice, else the method's own conversion.
    """

    name: str
    method: Method
    output: Output


_TUNED: dict[str, dict[str, tuple[float, ...]]] = {
    "mnist": {
        "qFFL": (0.1, 0.1, 0.1),
        "PropFair": (2.0, 2.0, 2.0),
        "FedMGDA+": (0.5, 0.5, 0.05),
        "FedFV": (0.2, 0.2, 0.2),
        "FedFV τ": (1, 1, 1),
        "STCH": (0.01, 0.01, 0.01),
        MOMENTUM: (0.01, 0.01, 0.01),
        "ExcessMTL": (1.0, 1.0, 1.0),
        "AdaExcessMTL": (0.3, 1.0, 1.0),
        "OMDgd-TCH": (0.03, 0.01, 0.01),
        "AdaOMDgd-TCH": (0.03, 1.0, 1.0),
        "OMDeg-TCH": (0.3, 0.3, 0.1),
        "AdaOMDeg-TCH": (0.1, 0.3, 0.03),
    },
    "cifar10": {
        "qFFL": (0.1, 0.1, 0.1),
        "PropFair": (3.0, 4.0, 2.0),
        "FedMGDA+": (0.1, 0.1, 0.1),
        "FedFV": (0.2, 0.1, 0.2),
        "FedFV τ": (1, 0, 1),
        "STCH": (0.01, 0.03, 0.03),
        MOMENTUM: (0.01, 0.03, 0.01),
        "ExcessMTL": (1.0, 0.1, 0.1),
        "AdaExcessMTL": (0.1, 0.03, 0.001),
        "OMDgd-TCH": (1.0, 0.01, 0.01),
        "AdaOMDgd-TCH": (0.03, 0.003, 0.3),
        "OMDeg-TCH": (1.0, 0.03, 0.1),
        "AdaOMDeg-TCH": (0.3, 0.03, 0.03),
    },
}
"""tab:2: the best values for rotation, C = 2 and C = 5. Digits take those of MNIST, two clients those of rotation.
STCH with momentum is in tab:stch alone, on CIFAR-10; on MNIST it takes the value of STCH."""

_STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
ATTEMPTED: dict[str, tuple[float, ...]] = {
    "qFFL": (0.1, 0.5, 1.0, 5.0, 10.0),
    "PropFair": (2.0, 3.0, 4.0, 5.0),
    "FedMGDA+": (0.05, 0.1, 0.5, 1.0),
    "FedFV": (0.1, 0.2, 0.5),
    "STCH": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "ExcessMTL": _STEPS,
    "AdaExcessMTL": _STEPS,
    "OMDgd-TCH": _STEPS,
    "AdaOMDgd-TCH": _STEPS,
    "OMDeg-TCH": _STEPS,
    "AdaOMDeg-TCH": _STEPS,
}
"""tab:2: the values that the paper tried; the one with the smallest worst-client training loss wins. FedFV: of α."""


def tuned(name: str, task: str) -> float | None:
    """The value that tab:2 gives a method on a task; None if the method has no setting."""
    data, _, kind = task.partition("-")
    column = {"rotation": 0, "two": 0, "class2": 1, "class5": 2}[kind]
    values = _TUNED["cifar10" if data == "cifar" else "mnist"].get(name)
    return None if values is None else values[column]


def row(
    name: str,
    task: str,
    preset: Preset = "published",
    value: float | None = None,
    own: Mapping[str, Method] | None = None,
) -> Row:
    """A method with its settings in tab:3 on a task.

    Args:
        name: A name in METHODS, EXACT_FERERO or MOMENTUM; any other method has the settings of the registry.
        task: A name in `tasks`.
        preset: Which settings.
        value: Its hyper-parameter, instead of the best one in tab:2.
        own: The user's own methods, by name.
    """
    if own and name in own:
        return Row(name, own[name], reported(own[name]))
    m = tasks(preset)[task].split.clients
    eta = tasks(preset)[task].work.step_size
    published = preset == "published"
    x = tuned(name, task) if value is None else value

    def steps() -> float:
        # The paper lists s in λ ← Π(λ + s f), with w_i = 1/m absorbed; gains here are w∘f.
        assert x is not None  # noqa: S101
        return x * m

    def excess() -> ExcessRisk:
        assert x is not None  # noqa: S101
        if published and task == "cifar-two":  # here w is not uniform and enters the exponent
            return ExcessRisk(steps(), "simultaneous")
        return ExcessRisk(x, "simultaneous", "gradients") if published else ExcessRisk(steps())

    makers: dict[str, tuple[Callable[[], Method], Output]] = {
        "LS": (lambda: Method(Linear(), Last()), "last"),
        "qFFL": (lambda: Method(QFFL(_given(x), eta), Last()), "last"),
        "PropFair": (
            lambda: Method(Linear(), Last(), PropFair(_given(x), 1.0, "linear") if published else PropFair(_given(x))),
            "last",
        ),
        "FedMGDA+": (lambda: Method(FedMGDAPlus(_given(x), "models"), Last()), "last"),
        "FedFV": (lambda: Method(FedFV(_given(x), int(_given(tuned("FedFV τ", task)))), Last()), "last"),
        # In the paper's two-client runs with a preference, the server moves to the worst client's model, whatever w is.
        "TCH": (
            lambda: Method(Tchebycheff("unit") if published and task == "cifar-two" else Tchebycheff(), Last()),
            "last",
        ),
        "STCH": (lambda: Method(SmoothTchebycheff(_given(x)), Last()), "last"),
        MOMENTUM: (
            lambda: Method(
                Momentum(SmoothTchebycheff(_given(x)), "released" if published else "bounded_drift"), Last()
            ),
            "last",
        ),
        "EPO": (
            lambda: Method(EPO(normalize=False, fallback="preference") if published else EPO(), Last()),
            "last",
        ),
        "FERERO": (lambda: Method(_released_ferero() if published else FERERO(), Last()), "last"),
        EXACT_FERERO: (lambda: Method(FERERO(), Last()), "last"),
        "ExcessMTL": (lambda: Method(excess(), Average()), "average"),
        "AdaExcessMTL": (lambda: Method(excess(), Adaptive()), "adaptive"),
        "OMDgd-TCH": (lambda: Method(OMD(steps(), Euclidean()), Average()), "average"),
        "AdaOMDgd-TCH": (lambda: Method(OMD(steps(), Euclidean()), Adaptive()), "adaptive"),
        "OMDeg-TCH": (lambda: Method(OMD(steps(), Entropic()), Average()), "average"),
        "AdaOMDeg-TCH": (lambda: Method(OMD(steps(), Entropic()), Adaptive()), "adaptive"),
    }
    if name in makers:
        make, output = makers[name]
        return Row(name, make(), output)
    others = methods()
    if name not in others:
        raise unknown("method must be a known name", name, known_names())
    return Row(name, others[name], reported(others[name]))


def by_ratios(row: Row, preset: Preset = "published") -> Row:
    """A row whose weights are updated with the ratios f_i/f_i⁽⁰⁾ (tab:ratio).

    LS has no weights to update. In `published`, AdaOMDeg uses the ratio only in the first round.
    """
    if isinstance(row.method.weighting, Linear):
        return row
    span: Literal["always", "first"] = "always"
    if preset == "published" and row.name == "AdaOMDeg-TCH":
        span = "first"
    return replace(row, method=replace(row.method, weighting=Relative(row.method.weighting, span)))


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


def _given(value: float | None) -> float:
    require(value is not None, "value must be given: the method has a setting", value)
    assert value is not None  # noqa: S101
    return value


def _released_ferero() -> FERERO:
    solver = DualDescent(rate=1e-5, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)
    return FERERO(target="direct", solver=solver)
