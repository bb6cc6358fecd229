"""The federated tasks and rows are the paper's."""

from dataclasses import replace
from typing import Any

import pytest

import equipoise as eq
from equipoise.errors import UnknownNameError
from equipoise.experiments import paper
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.settings import EXACT_FERERO, METHODS, SEEDS, row, tasks, tuned
from equipoise.experiments.paper import Preset
from equipoise.federated import Dense, PartialClass, Participation, ResNet18, ResNet20, Rotation
from equipoise.weighting import DualDescent

# tab:2: MNIST rotation, C = 2, C = 5, then CIFAR.
TABLE = {
    "qFFL": ((0.1, 0.1, 0.1), (0.1, 0.1, 0.1)),
    "PropFair": ((2, 2, 2), (3, 4, 2)),
    "FedMGDA+": ((0.5, 0.5, 0.05), (0.1, 0.1, 0.1)),
    "FedFV": ((0.2, 0.2, 0.2), (0.2, 0.1, 0.2)),
    "FedFV τ": ((1, 1, 1), (1, 0, 1)),
    "STCH": ((0.01, 0.01, 0.01), (0.01, 0.03, 0.03)),
    "STCH w/ momentum": ((0.01, 0.01, 0.01), (0.01, 0.03, 0.01)),
    "ExcessMTL": ((1, 1, 1), (1, 0.1, 0.1)),
    "AdaExcessMTL": ((0.3, 1, 1), (0.1, 0.03, 0.001)),
    "OMDgd-TCH": ((0.03, 0.01, 0.01), (1, 0.01, 0.01)),
    "AdaOMDgd-TCH": ((0.03, 1, 1), (0.03, 0.003, 0.3)),
    "OMDeg-TCH": ((0.3, 0.3, 0.1), (1, 0.03, 0.1)),
    "AdaOMDeg-TCH": ((0.1, 0.3, 0.03), (0.3, 0.03, 0.03)),
}
KINDS = ("rotation", "class2", "class5")


def weighting(name: str, task: str, preset: Preset = "published") -> Any:
    return row(name, task, preset).method.weighting


@pytest.mark.parametrize("name", TABLE)
def test_the_best_values(name: str):
    for data, values in zip(("mnist", "cifar"), TABLE[name], strict=True):
        assert tuple(tuned(name, f"{data}-{kind}") for kind in KINDS) == values
    assert tuned(name, "digits-class2") == tuned(name, "mnist-class2")


@pytest.mark.parametrize("name", ["LS", "TCH", "EPO", "FERERO"])
def test_methods_without_a_setting(name: str):
    assert tuned(name, "mnist-rotation") is None
    assert row(name, "mnist-rotation").name == name


def test_the_best_value_is_among_the_attempted_ones():
    for name, values in paper.TRIED.items():
        for of_data in TABLE[name]:
            assert set(of_data) <= set(values), name


def test_fifteen_rows():
    assert len(METHODS) == len(set(METHODS)) == 15
    assert EXACT_FERERO not in METHODS
    assert SEEDS == (0, 25, 37, 42, 53, 81, 119, 1010, 1201, 2003)


def test_step_sizes_are_those_of_gains_w_times_f():
    """λ ← Π(λ + s f) with s as listed: w∘f = f/m, so the step is m s."""
    assert weighting("OMDgd-TCH", "mnist-rotation") == eq.OMD(10 * 0.03, eq.Euclidean())
    assert weighting("OMDeg-TCH", "cifar-class2") == eq.OMD(10 * 0.03, eq.Entropic())
    assert weighting("AdaOMDgd-TCH", "cifar-two") == eq.OMD(2 * 0.03, eq.Euclidean())
    assert weighting("AdaOMDeg-TCH", "mnist-rotation") == eq.OMD(10 * 0.1, eq.Entropic())
    assert weighting("ExcessMTL", "cifar-class2") == eq.ExcessRisk(0.1, "simultaneous", "gradients")
    assert weighting("ExcessMTL", "cifar-class2", "text") == eq.ExcessRisk(1.0)


def test_the_other_rows():
    assert weighting("LS", "mnist-rotation") == eq.Linear()
    assert weighting("qFFL", "mnist-rotation") == eq.QFFL(0.1, 0.1)
    assert weighting("FedMGDA+", "mnist-class5") == eq.FedMGDAPlus(0.05, "models")
    assert weighting("FedFV", "cifar-class2") == eq.FedFV(0.1, 0)
    assert weighting("FedFV", "cifar-class5") == eq.FedFV(0.2, 1)
    assert weighting("TCH", "mnist-rotation") == eq.Tchebycheff()
    assert weighting("STCH", "cifar-class2") == eq.SmoothTchebycheff(0.03)
    assert weighting(EXACT_FERERO, "mnist-rotation") == eq.FERERO()
    assert row("OMDgd-TCH", "mnist-rotation", value=0.5).method.weighting == eq.OMD(5.0, eq.Euclidean())


def test_what_the_published_rows_have_that_the_text_has_not():
    assert weighting("EPO", "mnist-rotation") == eq.EPO(normalize=False, fallback="preference", tolerance=1e-4)
    assert weighting("EPO", "mnist-rotation", "text") == eq.EPO()
    released = DualDescent(rate=1e-5, steps=1, tolerance=0.0, start_ray=0.0, carry="ray", normalize=True)
    assert weighting("FERERO", "mnist-rotation") == eq.FERERO(target="direct", solver=released)
    assert weighting("FERERO", "mnist-rotation", "text") == eq.FERERO()
    assert row("PropFair", "cifar-class2").method.transform == eq.PropFair(4.0, 1.0, "linear")
    assert row("PropFair", "cifar-class2", "text").method.transform == eq.PropFair(4.0, 0.2, "huber")
    for name in METHODS:
        assert (row(name, "mnist-rotation").method.transform is not None) == (name == "PropFair")


def test_which_output_a_row_reports():
    for name in METHODS:
        ada, averaged = name.startswith("Ada"), "OMD" in name or "Excess" in name
        assert row(name, "mnist-rotation").output == ("adaptive" if ada else "average" if averaged else "last")


def test_the_published_tasks():
    published = tasks()
    for task in published.values():
        assert (task.loss, task.average, task.batch_norm) == ("trajectory", "after", "batch")
        assert task.participation == Participation()
        assert task.work.step_size == 0.1
    mnist = published["mnist-rotation"]
    assert (mnist.data, mnist.rounds, mnist.work.epochs, mnist.work.batch_size) == ("mnist", 300, 10, None)
    assert mnist.model == Dense((784, 200, 10))
    assert mnist.split == Rotation((0,) * 7 + (1, 1, 2))
    cifar = published["cifar-rotation"]
    assert (cifar.data, cifar.rounds, cifar.work.epochs, cifar.work.batch_size) == ("cifar10", 45, 1, 100)
    assert cifar.model == ResNet20()
    assert cifar.split == Rotation((0,) * 7 + (2, 2, 2))
    for data in ("mnist", "cifar", "digits"):
        assert published[f"{data}-class2"].split == PartialClass(2, 10)
        assert published[f"{data}-class5"].split == PartialClass(5, 10)
    assert published["cifar-two"].split == Rotation((0, 2))


def test_the_text_says_otherwise():
    text = tasks("text")
    assert text.keys() == tasks().keys()
    for task in text.values():
        assert (task.loss, task.average, task.batch_norm) == ("received", "before", "recalibrated")
    assert text["cifar-two"].split == Rotation((0, 1))
    assert text["cifar-rotation"].model == ResNet18()
    assert text["mnist-rotation"].model == tasks()["mnist-rotation"].model


def test_names_that_are_not_known():
    with pytest.raises(UnknownNameError, match="found 'mnist-rotate'; nearest: mnist-rotation"):
        row("LS", "mnist-rotate")
    with pytest.raises(UnknownNameError, match="found 'OMD-TCH'"):
        row("OMD-TCH", "mnist-rotation")


def test_what_a_task_is_called():
    task = tasks()["mnist-class2"]
    assert settings.label_of("mnist-class2", task) == "mnist-class2"
    changed = replace(task, rounds=3, participation=Participation(0.5, 0.1))
    assert settings.label_of("mnist-class2", changed) == "mnist-class2"
    assert settings.label_of("mnist-class2", tasks("text")["mnist-class2"]) == (
        "mnist-class2, settings of the paper's text"
    )
    full = settings.evaluated_on(tasks()["cifar-two"], "full")
    assert settings.label_of("cifar-two", full) == "cifar-two, full-updated loss"
    apart = settings.evaluated_on(tasks()["cifar-two"], "val for dominance")
    assert settings.label_of("cifar-two", apart) == "cifar-two, validation-trajectory loss for dominance"
    assert settings.label_of("mnist-class2", replace(task, split=PartialClass(3))) == "mnist-class2, other settings"


def test_a_method_of_ones_own_is_a_row():
    mine = eq.Method(eq.OMD(0.7), eq.Average())
    found = row("mine", "digits-class2", own={"mine": mine})
    assert (found.name, found.method, found.task) == ("mine", mine, tasks()["digits-class2"])
    assert row("mine", "digits-class2", own={"mine": mine}).output == "average"
    other = eq.Method(eq.OMD(0.7), eq.Average(power=4.0))
    assert row("mine", "digits-class2", own={"mine": other}).output == "own"
    with pytest.raises(UnknownNameError, match="found 'mine'"):
        row("mine", "digits-class2")
