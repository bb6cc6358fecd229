"""Small networks × optimizers × preferences × seeds, as one tensor program."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from benchmarks.defaults.columns import OURS
from benchmarks.defaults.optimizers import Optimizer, Setting
from benchmarks.defaults.results import Record, numbers
from benchmarks.defaults.tasks import Bottleneck, Classes, Coloured, Task, TwoLosses
from benchmarks.defaults.trajectories import follow
from torch import Tensor

import equipoise as eq

SEEDS = {"chosen": (0, 1, 2, 3), "held-out": (11, 12, 13, 14)}
ADAM = {"Adam .003": Setting(0.003, 0.9, adam=True)}
OPTIMIZERS = {**ADAM, "SGD .1": Setting(0.1), "momentum .05": Setting(0.05, 0.9)}


@dataclass(frozen=True)
class Rows:
    """The rows of one task.

    Attributes:
        task: Makes the task for some seeds on a device.
        preferences: A row each.
        judged: The preferences, by number, whose rays are known to meet the front. Through few units they are not: a
            weighted sum is better in both losses than balanced answers. Where all losses can go to 0, as with digits
            by class, there is no trade-off to meet.
        optimizers: A row each.
        steps: Of mini-batches.
        cosine: Whether a cosine schedule takes the rate to 0 at the end.
        units: Whether losses are divided by those at the start.
        factor: What the first loss is multiplied by before anyone sees it. Then only `equipoise`, which can be told
            so by `units="start"`, has its losses divided by those at the start.
        decay: ℓ₂ regularisation.
    """

    task: Callable[[Sequence[int], str], Task]
    preferences: tuple[tuple[float, ...], ...]
    judged: tuple[int, ...]
    optimizers: Mapping[str, Setting]
    steps: int = 2_000
    cosine: bool = True
    units: bool = True
    factor: float = 1.0
    decay: float = 0.0


_PAIRS = ((0.3, 0.7), (0.7, 0.3), (0.1, 0.9))
TASKS = {
    "two losses": Rows(TwoLosses, _PAIRS[:2], (0, 1), OPTIMIZERS),
    "4 units": Rows(lambda seeds, device: Bottleneck(seeds, device, 4), _PAIRS, (), ADAM),
    "2 units": Rows(lambda seeds, device: Bottleneck(seeds, device, 2), _PAIRS, (), ADAM),
    "4 units ×300": Rows(lambda seeds, device: Bottleneck(seeds, device, 4), _PAIRS[:2], (), ADAM, factor=300.0),
    "digits linear": Rows(Classes, ((0.1,) * 10,), (), OPTIMIZERS, units=False),
    "digits MLP": Rows(lambda seeds, device: Classes(seeds, device, 32), ((0.1,) * 10,), (), OPTIMIZERS, units=False),
    "coloured": Rows(
        Coloured,
        ((0.25,) * 4,),
        (),
        {"SGD .1": Setting(0.1), "momentum .02": Setting(0.02, 0.9), **ADAM},
        steps=630,
        cosine=False,
        units=False,
        decay=1e-2,
    ),
}


def run(
    name: str,
    methods: Mapping[str, eq.Method],
    *,
    half: str = "chosen",
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    preferences: Sequence[Sequence[float]] | None = None,
    optimizers: Mapping[str, Setting] | None = None,
    device: str = "cpu",
) -> list[Record]:
    """All methods on one task of `TASKS`.

    Args:
        name: The task.
        methods: The methods by name. Coefficients λ∘w are multiplied by m, as in `MultiObjective`.
        half: "chosen" or "held-out": which seeds, and what the records say.
        seeds: Other seeds.
        steps: Other than the task's own.
        preferences: Others than the task's own.
        optimizers: Others than the task's own.
        device: Where the batch lives.

    Returns:
        A record for every optimizer, preference and method.
    """
    rows = TASKS[name]
    if rows.factor == 1:
        return _run(name, methods, half, seeds, steps, preferences, optimizers, device, units=rows.units)
    told = {column: method for column, method in methods.items() if column.startswith(OURS)}
    others = {column: method for column, method in methods.items() if column not in told}
    found = []
    for some, units in ((told, True), (others, False)):
        if some:
            found += _run(name, some, half, seeds, steps, preferences, optimizers, device, units=units)
    return found


def settings(rows: Rows) -> list[str]:
    """What distinguishes the rows of one task."""
    return [_setting(optimizer, wish) for optimizer in rows.optimizers for wish in rows.preferences]


def _setting(optimizer: str, wish: Sequence[float]) -> str:
    uniform = len(set(wish)) == 1
    return optimizer if uniform else f"{optimizer} w=({', '.join(f'{value:g}' for value in wish)})"


def _run(
    name: str,
    methods: Mapping[str, eq.Method],
    half: str,
    seeds: Sequence[int] | None,
    steps: int | None,
    preferences: Sequence[Sequence[float]] | None,
    optimizers: Mapping[str, Setting] | None,
    device: str,
    *,
    units: bool,
) -> list[Record]:
    began = time.perf_counter()
    rows = TASKS[name]
    seeds = SEEDS[half] if seeds is None else tuple(seeds)
    steps = rows.steps if steps is None else steps
    wanted = [tuple(w) for w in (rows.preferences if preferences is None else preferences)]
    optimizers = rows.optimizers if optimizers is None else optimizers
    task = rows.task(seeds, device)
    w = torch.tensor(wanted, device=device).unsqueeze(-2)  # (P, 1, m)
    start = task.initial()
    first = task.whole(start, "train")
    factor = torch.ones(task.m, device=device)
    factor[0] = rows.factor
    unit = factor * first if units else torch.ones_like(first)
    batches = task.draw(steps)

    def losses(theta: Tensor, t: int) -> Tensor:
        return factor * task.losses(theta, batches[t - 1]) / unit

    horizon = steps if rows.cosine else None
    settings = list(optimizers.values())
    optimizer = Optimizer.of(settings, (-1, 1, 1), dtype=start.dtype, device=device, decay=rows.decay, horizon=horizon)
    shape = (len(optimizers), len(wanted), *start.shape)
    answers = follow(losses, start.expand(shape), methods, w, optimizer, (steps,), average=True)[steps]
    seconds = round(time.perf_counter() - began, 2)
    scored = first if rows.units or rows.factor != 1 else torch.ones_like(first)
    own = {rows.preferences[j] for j in rows.judged}
    records = []
    for column, theta in answers.items():
        train, test = (task.whole(theta, part) / scored for part in ("train", "test"))
        accuracy = task.accuracy(theta)
        for i, kind in enumerate(optimizers):
            for j, wish in enumerate(wanted):
                records.append(
                    Record(
                        part="networks",
                        half=half,
                        problem=name,
                        setting=_setting(kind, wish),
                        steps=steps,
                        column=column,
                        seeds=seeds,
                        preferences=[list(wish)],
                        train=numbers(train[i, j].unsqueeze(1)),
                        test=numbers(test[i, j].unsqueeze(1)),
                        exact=[],
                        judged=[0] if wish in own else [],
                        accuracy=[] if accuracy is None else [round(value, 4) for value in accuracy[i, j].tolist()],
                        seconds=seconds,
                    )
                )
    return records
