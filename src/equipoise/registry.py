"""All methods by name: each is a weighting with a conversion."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from equipoise import preference
from equipoise.batch import Number, whole
from equipoise.conversion import Adaptive, Average, Conversion, Last, Suffix
from equipoise.errors import UnknownNameError, require
from equipoise.simplex import Entropic, Euclidean
from equipoise.transform import PropFair
from equipoise.weighting import (
    DWA,
    EPO,
    FAMO,
    FERERO,
    IMTLG,
    MGDA,
    OMD,
    PMTL,
    QFFL,
    AlignedMTL,
    CAGrad,
    ExcessRisk,
    FedFV,
    FedMGDAPlus,
    GradNorm,
    Linear,
    MoCo,
    Momentum,
    NashMTL,
    PCGrad,
    RandomWeights,
    SelfTuned,
    SmoothTchebycheff,
    Tchebycheff,
    Uncertainty,
    UPGrad,
    Weighting,
)

__all__ = ["Method", "Named", "default", "group_dro", "methods", "nearest", "resolve", "unknown"]

T = TypeVar("T")


@dataclass(frozen=True)
class Method:
    """A method: how losses become coefficients, and how the trajectory becomes the answer.

    Attributes:
        weighting: The weighting.
        conversion: The conversion.
        transform: A function that every client applies to its batch loss before differentiating it, or None.

    Examples:
        >>> method = eq.Method(eq.OMD(step_size=0.1, mirror=eq.Entropic()), eq.Average())
        >>> found = eq.solve(eq.problems.VLMOP1(), [[0.5, 0.5]], method, steps=300)
        >>> [round(value, 1) for value in found.losses["solution"][0, 0].tolist()]
        [1.0, 1.0]
    """

    weighting: Weighting[Any]
    conversion: Conversion[Any]
    transform: Callable[[Tensor], Tensor] | None = None


class Named(dict[str, T]):
    """A dictionary whose KeyError lists the nearest names.

    Examples:
        >>> from equipoise.registry import Named
        >>> Named({"average": 1, "last": 2}, "conversion")["averge"]
        Traceback (most recent call last):
            ...
        equipoise.errors.UnknownNameError: conversion must be a known name; found 'averge'; nearest: average
    """

    def __init__(self, entries: Mapping[str, T], kind: str) -> None:
        super().__init__(entries)
        self._kind = kind

    def __missing__(self, name: str) -> T:
        raise unknown(f"{self._kind} must be a known name", name, self)


def unknown(rule: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for an unknown name; it lists similar names, if any.

    Examples:
        >>> str(eq.registry.unknown("task must be a known name", "zzz", ["digits-rotation"]))
        "task must be a known name; found 'zzz'"
    """
    near = nearest(name, known)
    return UnknownNameError(f"{rule}; found {name!r}{f'; nearest: {near}' if near else ''}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names most similar to a given one; empty if none is.

    Examples:
        >>> eq.registry.nearest("omd", ["OMDgd-TCH", "OMDeg-TCH", "LS"])
        'OMDgd-TCH, OMDeg-TCH'
    """
    folded = {key.casefold(): key for key in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.4)
    return ", ".join(folded[key] for key in close)


EARLY = 3.0
"""A run whose length is known counts as young for at most its length divided by this."""


def default(*, steps: int | None = None, **changes: Any) -> Method:
    """The default method, `equipoise` in the registry: none of its settings is tuned to a problem.

    Its weighting measures its own gain, so noise, momentum and units need no setting. Its answer works with noisy
    losses and keeps eight copies. docs/defaults.md says how it was chosen and where another choice is better.

    Args:
        steps: The length of the run, if you know it, in optimizer steps or rounds. The run then counts as young, and is
            close to a weighted sum, for at most a third of it. It matters below 1,200 steps. With `youth=` it changes
            nothing.
        **changes: Settings of `SelfTuned` or `Suffix` to change, by name.

    Raises:
        UnknownNameError: Neither has a setting of this name.
        ValueError: `steps` is no whole number of at least 1.

    Examples:
        >>> eq.default()
        Method(weighting=SelfTuned(...), conversion=Suffix(power=8.0, capacity=8, z=2.0), transform=None)
        >>> eq.default(steps=300).weighting.youth
        100.0
        >>> eq.default(power=4, youth=0).conversion
        Suffix(power=4, capacity=8, z=2.0)
    """
    weighting, conversion = SelfTuned(), Suffix()
    names = [{field.name for field in dataclasses.fields(part)} for part in (weighting, conversion)]
    for name in changes:
        if name not in set.union(*names):
            known = sorted({"steps"}.union(*names))
            raise unknown(f"a change of the default must be one of {', '.join(known)}", name, known)
    if steps is not None:
        changes = {"youth": min(weighting.youth, whole("steps", steps) / EARLY), **changes}
    ours, theirs = ({key: x for key, x in changes.items() if key in own} for own in names)
    return Method(dataclasses.replace(weighting, **ours), dataclasses.replace(conversion, **theirs))


def resolve(method: Method | Weighting[Any] | str | None, steps: int | None = None) -> Method:
    """Resolve a name from `methods()`, a `Method`, a weighting (with the last iterate) or None (the default).

    Args:
        method: What the user gave.
        steps: The length of the run, for the default.

    Raises:
        ValueError: It is none of these, or no method has this name.

    Examples:
        >>> eq.registry.resolve("TCH").weighting
        Tchebycheff(scale='preference', ideal=0.0)
        >>> eq.registry.resolve(eq.Linear()).conversion
        Last()
        >>> eq.registry.resolve(None) == eq.registry.default()
        True
    """
    if method is None:
        return default(steps=steps)
    if isinstance(method, str):
        return methods()[method]
    if isinstance(method, Method):
        return method
    sound = not isinstance(method, type) and all(hasattr(method, name) for name in ("init", "update", "needs"))
    require(sound, 'a method must be a name such as "TCH", a Method, or a weighting such as OMD()', method)
    return Method(method, Last())


def group_dro(counts: Sequence[int], adjustment: float = 0.0, step_size: Number = 0.01) -> Method:
    """GroupDRO with its generalisation adjustment: the weights see f_g + C/√n_g, the gradient step f_g.

    For a uniform preference λ_g ← λ_g exp(η (f_g + C/√n_g)), normalised, as in the publication: `OMD`, whose gains are
    w∘(f − z), gets the step m·η, and the adjustment is an ideal point z_g = −C/√n_g. The scalar of a `MultiObjective`
    is then Σ λ_g f_g, as in the publication, so learning rates carry over.

    Groups share one loss and its unit, so they need no `units=`. If you give `units=` or `ideal=` to `MultiObjective`
    or `solve`, the adjustment is in these units.

    Args:
        counts: n_g, the number of training samples of every group.
        adjustment: C ≥ 0.
        step_size: η of the weights; 0.01 as in the published code.

    Examples:
        >>> weighting = eq.group_dro([100, 4], adjustment=1.0).weighting
        >>> weighting.step_size, weighting.ideal
        (0.02, (-0.1, -0.5))
    """
    rule = "counts must be whole numbers, one per group in the order of the preference"
    require(not isinstance(counts, Mapping | str), rule, lambda: repr(counts))
    require(len(counts) >= 1 and min(counts) >= 1, "counts must be at least 1 for every group", list(counts))
    require(adjustment >= 0, "adjustment must be non-negative", adjustment)
    ideal = tuple(-adjustment / math.sqrt(n) for n in counts)
    return Method(OMD(len(counts) * step_size, Entropic(), order="alternating", ideal=ideal), Last())


def methods() -> Named[Method]:
    """Every method by its name in the paper or the literature, with the paper's settings for synthetic problems.

    Set qFFL's `step_size` to that of your loop. PMTL's references are the paper's ten preferences for two objectives;
    give your own for more. GroupDRO's step is right for two objectives; `group_dro` handles any number. DWA's epoch is
    100 steps; set it to the number of batches in your data, or to 1 in federated learning.

    Returns:
        A new dictionary; `dataclasses.replace` changes a setting.

    Examples:
        >>> eq.methods()["AdaOMDgd-TCH"].conversion
        Adaptive(power=0.0, capacity=None, ties='stored')
    """
    gd = OMD(step_size=1.0, mirror=Euclidean())
    eg = OMD(step_size=1.0, mirror=Entropic())
    references = tuple((w, v) for w, v in preference.linspace(10).tolist())
    return Named(
        {
            "equipoise": default(),
            "OptOMD-TCH": Method(
                OMD(step_size="adaptive", optimism=30.0, smoothing=3.0, horizon=1000.0), Adaptive(power=8.0, capacity=8)
            ),
            "LS": Method(Linear(), Last()),
            "FedAvg": Method(Linear(), Last()),
            "TCH": Method(Tchebycheff(), Last()),
            "STCH": Method(SmoothTchebycheff(mu=0.01), Last()),
            "STCH w/ momentum": Method(Momentum(SmoothTchebycheff(mu=0.01)), Last()),
            "TERM": Method(SmoothTchebycheff(mu=1.0, normalize="mean"), Last()),
            "OMDgd-TCH": Method(gd, Average()),
            "OMDeg-TCH": Method(eg, Average()),
            "AdaOMDgd-TCH": Method(gd, Adaptive()),
            "AdaOMDeg-TCH": Method(eg, Adaptive()),
            "AFL": Method(gd, Average()),
            "ALMO": Method(gd, Average()),
            "GroupDRO": Method(OMD(step_size=0.02, mirror=Entropic(), order="alternating"), Last()),
            "AdaLS": Method(Linear(), Adaptive()),
            "AdaTCH": Method(Tchebycheff(), Adaptive()),
            "ExcessMTL": Method(ExcessRisk(1.0), Average()),
            "AdaExcessMTL": Method(ExcessRisk(1.0), Adaptive()),
            "MGDA": Method(MGDA(), Last()),
            "CR-MOGM": Method(Momentum(MGDA()), Last()),
            "Moco": Method(MoCo(1.0), Last()),
            "EPO": Method(EPO(), Last()),
            "FERERO": Method(FERERO(), Last()),
            "PMTL": Method(PMTL(references), Last()),
            "PCGrad": Method(PCGrad(), Last()),
            "CAGrad": Method(CAGrad(), Last()),
            "IMTL-G": Method(IMTLG(), Last()),
            "Nash-MTL": Method(NashMTL(), Last()),
            "UPGrad": Method(UPGrad(), Last()),
            "Aligned-MTL": Method(AlignedMTL(), Last()),
            "UW": Method(Uncertainty(), Last()),
            "DWA": Method(DWA(epoch=100), Last()),
            "FAMO": Method(FAMO(), Last()),
            "GradNorm": Method(GradNorm(), Last()),
            "RLW": Method(RandomWeights(), Last()),
            "PropFair": Method(Linear(), Last(), PropFair()),
            "qFFL": Method(QFFL(q=0.1, step_size=0.1), Last()),
            "FedMGDA+": Method(FedMGDAPlus(epsilon=0.1), Last()),
            "FedFV": Method(FedFV(alpha=0.1, tau=1), Last()),
        },
        "method",
    )
