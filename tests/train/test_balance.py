"""An objective without gradient for a long time: one warning with the remedy, and none in an ordinary run."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import BalanceWarning
from equipoise.train import history

OMD = eq.OMD(0.5)


class Fixed(nn.Module):
    """Losses that no parameter changes."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.values = torch.tensor(values)

    def forward(self) -> Tensor:
        return self.values + 0 * self.weight


def run(values: tuple[float, ...], preference: list[float], steps: int = 1100, **settings: Any) -> eq.MultiObjective:
    model = Fixed(*values)
    mol = eq.MultiObjective(model, None, preference, method=(settings.pop("weighting", OMD), eq.Last()), **settings)
    for _ in range(steps + 1):
        mol(model())
    return mol


UNITS = (
    "price has had hardly any gradient for 1000 steps: its weight λ was 0 on average, and its weighted loss is "
    "99 % below the largest, that of length. What to do: if length cannot fall much further (noisy labels, a "
    'likelihood), give its best value as ideal=; if the losses have different units, give units="start"; or raise the '
    "weight of price, or accept that it is better than asked for; this is said once"
)
MISSED = (
    "price has had hardly any gradient for 1000 steps: its weight λ was 0 on average, and its weighted loss is "
    "80 % below the largest, that of length. What to do: if length cannot fall much further (noisy labels, a "
    "likelihood), give its best value as ideal=; or raise the weight of price, or accept that it is better than asked "
    "for; this is said once"
)
NAMES = ("length", "price")


def test_units_are_suspected_where_losses_differ_by_much():
    with pytest.warns(BalanceWarning) as said:
        run((87.0, 1.0), [0.5, 0.5], 3000, names=NAMES)
    assert [str(one.message) for one in said] == [UNITS]
    assert said[0].filename == __file__


def test_else_the_ray_misses_the_front():
    with pytest.warns(BalanceWarning) as said:
        run((5.0, 1.0), [0.5, 0.5], 3000, names=NAMES)
    assert [str(one.message) for one in said] == [MISSED]


@pytest.mark.parametrize(
    ("values", "preference", "settings", "text"),
    [
        # the large loss is the one asked for less
        ((1.0, 50.0), [0.99, 0.01], {}, "^objective 1 .*if objective 0 cannot fall much further.*ideal=; or raise"),
        (
            (9.0, 1.0, 1.0),
            [0.2, 0.4, 0.4],
            {},
            r"objective 1 .* 78 % below the largest, that of objective 0 \(1 more objective is like it\)",
        ),
        ((9.0, 1.0, 1.0, 1.0), [0.1, 0.3, 0.3, 0.3], {}, r"\(2 more objectives are like it\)"),
        ((8.7, 0.1), [0.5, 0.5], {"units": [0.1, 0.1]}, 'give units="start"'),
        ((8.7, 0.1), [0.5, 0.5], {"units": [1.0, 0.1]}, "ideal=; or raise"),
        ((2.0, 1.0), [0.9, 0.1], {"units": "start"}, "^objective 1 .*ideal=; or raise"),
        ((4.0, 1.0), [0.5, 0.5], {"ideal": [0.0, 0.9]}, 'give units="start"'),
        ((9.0, *[1.0] * 10), [1 / 11] * 11, {}, r"\(9 more objectives"),  # one of eleven has all weight
        # below its own ideal point
        (
            (3.0, 0.25),
            [0.5, 0.5],
            {"ideal": [0.0, 1.25], "units": [1.0, 2.0]},
            r"mean loss, 0\.25, lies below its ideal=1\.25\. What to do: give objective 1 a lower ideal=, below the",
        ),
        (
            (3.0, -0.5),
            [0.5, 0.5],
            {},
            r"its mean loss lies below its ideal point\. What to do: give objective 1 a lower",
        ),
    ],
)
def test_what_is_said(values, preference, settings, text):
    with pytest.warns(BalanceWarning, match=text):
        run(values, preference, **settings)


QUIET: dict[str, tuple[tuple[float, ...], list[float], dict[str, Any]]] = {
    "not for long": ((87.0, 1.0), [0.5, 0.5], {"steps": 990}),
    "balanced": ((1.0, 3.0), [0.75, 0.25], {}),
    "close to the largest": ((1.0, 0.95), [0.5, 0.5], {}),
    "nothing asked": ((5.0, 1.0), [1.0, 0.0], {}),
    "no λ": ((87.0, 1.0), [0.5, 0.5], {"weighting": eq.Tchebycheff()}),
    "one in ten of many has a gradient": ((*[9.0] * 2, *[1.0] * 18), [1 / 20] * 20, {}),
    "in units": ((87.0, 1.0), [0.5, 0.5], {"units": "start"}),
}


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_said(case):
    values, preference, settings = QUIET[case]
    run(values, preference, **{"steps": 1500, **settings})  # a warning is an error in tests


@pytest.mark.parametrize("method", [None, (OMD, eq.Last())], ids=["default", "OMD"])
def test_nothing_is_said_in_an_ordinary_run(method):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mol = eq.MultiObjective(model, optimizer, [0.1, 0.9], method=method)
    for _ in range(1500):
        x = model.weight.squeeze() + 0.1 * torch.randn(())
        mol(torch.stack([x**2, (x - 2) ** 2])).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert mol.step == 1500


def trap(floor: float, steps: int, **settings: Any) -> eq.MultiObjective:
    """Two losses with noise on λ; the first cannot fall below `floor`."""
    torch.manual_seed(0)
    model = nn.Linear(1, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    mol = eq.MultiObjective(model, optimizer, {"noisy": 0.5, "clean": 0.5}, **settings)
    for _ in range(steps):
        noise = 1 + 0.3 * torch.randn(2)
        a, b = model.weight.squeeze()
        mol(torch.stack([floor + (a - 1) ** 2, 0.1 + 0.9 * (b - 1) ** 2]) * noise).backward()
        optimizer.step()
        optimizer.zero_grad()
    return mol


def test_weights_that_flicker_are_judged_by_their_mean():
    with pytest.warns(BalanceWarning, match=r"^clean has had hardly any gradient.*noisy cannot fall much further"):
        mol = trap(0.3, 2500)
    some = mol.history.duals[-1000:, 1]
    assert 0 < some.mean() < 0.025
    assert float(some.max()) > 0.05  # no single step tells


def test_the_remedy_ends_it():
    trap(0.3, 2500, ideal={"noisy": 0.27, "clean": 0.09})  # a warning is an error in tests


def test_a_faint_gradient_is_right_while_the_largest_falls():
    model = Fixed(9.0, 1.0)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(OMD, eq.Last()))
    look = mol._run.balance.look
    for step in range(25, 3001, 25):
        look(torch.tensor([0.99, 0.01]), torch.tensor([30 * 0.9996**step, 1.0]), step)

    def rest() -> None:
        for step in range(3025, 4501, 25):
            look(torch.tensor([0.99, 0.01]), torch.tensor([7.0, 1.0]), step)

    with pytest.warns(BalanceWarning):
        rest()


def test_it_changes_nothing(toy, preference, monkeypatch):
    def trained() -> dict[str, Tensor]:
        ours = toy()
        mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(OMD, eq.Last()))
        ours.run(mol, 230)
        params: dict[str, Tensor] = ours.params()
        return params

    looked: list[int] = []
    original = history.Balance.look

    def look(*args: Any) -> None:
        looked.append(args[-1])
        original(*args)

    monkeypatch.setattr(history.Balance, "look", look)
    often = trained()
    assert looked == list(range(25, 231, 25))
    monkeypatch.setattr(history, "EVERY", 10**9)
    torch.testing.assert_close(often, trained(), rtol=0, atol=0)


def test_where_a_device_must_not_be_waited_for_it_is_said_a_call_later(as_accelerator):
    with as_accelerator():
        run((87.0, 1.0), [0.5, 0.5], 999)  # 1,000 calls: the last step is not committed yet
        with pytest.warns(BalanceWarning, match="objective 1") as said:
            run((87.0, 1.0), [0.5, 0.5], 1000)
    assert said[0].filename == __file__


def test_an_objective_that_comes_back_is_counted_anew():
    model = Fixed(87.0, 1.0)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(OMD, eq.Last()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3000):
            model.values = torch.tensor([1.0, 87.0] if step // 600 % 2 else [87.0, 1.0])
            mol(model())
