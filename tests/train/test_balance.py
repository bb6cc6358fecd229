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
    "95 % below the largest, that of length. What to do: if length cannot fall much further (noisy labels, a "
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
        run((20.0, 1.0), [0.5, 0.5], 3000, names=NAMES)
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
    "29 times apart": ((29.0, 1.0), [0.5, 0.5], {"steps": 990}),
    "apart by the preference": ((1.0, 1.0), [0.99, 0.01], {"steps": 990}),
    "made even by the preference": ((50.0, 1.0), [0.02, 0.98], {}),
    "one objective": ((2.0,), [1.0], {"units": "start", "steps": 300}),
    "units given": ((500.0, 1.0), [0.5, 0.5], {"units": [1.0, 1.0], "steps": 990}),
    "not for long": ((20.0, 1.0), [0.5, 0.5], {"steps": 990}),
    "balanced": ((1.0, 3.0), [0.75, 0.25], {}),
    "close to the largest": ((1.0, 0.95), [0.5, 0.5], {}),
    "nothing asked": ((5.0, 1.0), [1.0, 0.0], {}),
    "no λ": ((20.0, 1.0), [0.5, 0.5], {"weighting": eq.Tchebycheff()}),
    "one in ten of many has a gradient": ((*[9.0] * 2, *[1.0] * 18), [1 / 20] * 20, {}),
    "in units": ((20.0, 1.0), [0.5, 0.5], {"units": "start"}),
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


# Wrong units --------------------------------------------------------------------------------


def test_losses_far_apart_from_the_first_step_are_said_to_have_other_units():
    with pytest.warns(BalanceWarning) as said:
        run((1200.0, 1.0), [0.5, 0.5], 3000, names=NAMES)
    (text,) = [str(one.message) for one in said]
    assert text == (
        "price has hardly any gradient after 100 steps: the loss of length was 1,200 times as large in the first step, "
        'and is 1,200 times as large now. What to do: if they have different units, give units="start", or units= as '
        "numbers where a loss starts near 0 and rises, such as a KL term (docs/howto/units.md); this is said once"
    )
    assert said[0].filename == __file__


def targets(size: float, steps: int = 400, **settings: Any) -> None:
    """Two regressions by one network, the second loss `size` times as large."""
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = torch.tanh(x @ torch.randn(8, 2))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mol = eq.MultiObjective(model, optimizer, {"small": 0.5, "big": 0.5}, **settings)
    for _ in range(steps):
        chosen = torch.randint(0, 512, (64,))
        small, big = (model(x[chosen]) - y[chosen]).square().mean(0)
        mol({"small": small, "big": size * big}).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("method", [None, (OMD, eq.Last())], ids=["default", "OMD"])
def test_other_units_are_said_while_the_larger_loss_falls(method):
    with pytest.warns(
        BalanceWarning, match=r"^small has hardly any gradient after 1\d\d steps: the loss of big was 12,"
    ):
        targets(1e4, method=method)


@pytest.mark.parametrize(("size", "units"), [(1e4, "start"), (1e4, [1.0, 1e4]), (1.0, None)])
def test_nothing_is_said_with_the_right_units(size, units):
    targets(size, units=units)  # a warning is an error in tests


def test_a_loss_that_is_small_only_later_has_no_other_unit():
    model = Fixed(2.0, 1.0)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(OMD, eq.Last()))
    for step in range(600):
        model.values = torch.tensor([2.0, 1.0 if step < 5 else 0.01])
        mol(model())
    assert mol.history.duals[-1].tolist() == [1, 0]


def autoencoder(units: Any, steps: int = 200) -> None:
    """A variational autoencoder, whose KL term starts 1,000 times below its other loss."""
    torch.manual_seed(0)
    x = torch.sigmoid(torch.tanh(torch.randn(1024, 4) @ torch.randn(4, 8)) @ torch.randn(8, 128))
    encoder = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 8))
    decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 128))
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mol = eq.MultiObjective(model, optimizer, {"rec": 0.5, "kl": 0.5}, units=units)
    for _ in range(steps):
        batch = x[torch.randint(0, 1024, (64,))]
        mean, logs = encoder(batch).chunk(2, 1)
        out = decoder(mean + torch.randn_like(mean) * (logs / 2).exp())
        rec = nn.functional.binary_cross_entropy_with_logits(out, batch, reduction="none").sum(1).mean()
        kl = (mean.square() + logs.exp() - logs - 1).sum(1).mean() / 2
        mol({"rec": rec, "kl": kl}).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_loss_that_starts_near_0_and_rises_is_said_to_have_no_unit():
    text = r'^kl started at 0\.0\d+, its unit by units="start", [\d,]+ times less than .* needs its unit as a number'
    with pytest.warns(BalanceWarning, match=text) as said:
        autoencoder("start")
    assert len(said) == 1
    autoencoder({"rec": 90.0, "kl": 5.0})  # a warning is an error in tests


def test_wrong_units_are_sought_at_the_beginning_of_a_run_alone():
    model = Fixed(1200.0, 1.0)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(OMD, eq.Last()))
    for _ in range(50):
        mol(model())
    mol.set_preference([0.4, 0.6])
    for _ in range(600):
        mol(model())
    assert mol.history.duals[-1].tolist() == [1, 0]


# Means over windows -------------------------------------------------------------------------


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
    look, unit = mol._run.balance.look, torch.ones(2)
    for step in range(25, 3001, 25):
        look(torch.tensor([0.99, 0.01]), torch.tensor([30 * 0.9996**step, 1.0]), step, unit)

    def rest() -> None:
        for step in range(3025, 4501, 25):
            look(torch.tensor([0.99, 0.01]), torch.tensor([7.0, 1.0]), step, unit)

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
        looked.append(args[3])
        original(*args)

    monkeypatch.setattr(history.Balance, "look", look)
    often = trained()
    assert looked == [1, *range(25, 231, 25)]
    monkeypatch.setattr(history, "EVERY", 10**9)
    torch.testing.assert_close(often, trained(), rtol=0, atol=0)


def test_where_a_device_must_not_be_waited_for_it_is_said_a_call_later(as_accelerator):
    with as_accelerator():
        run((20.0, 1.0), [0.5, 0.5], 999)  # 1,000 calls: the last step is not committed yet
        with pytest.warns(BalanceWarning, match="objective 1") as said:
            run((20.0, 1.0), [0.5, 0.5], 1000)
    assert said[0].filename == __file__


def test_an_objective_that_comes_back_is_counted_anew():
    model = Fixed(20.0, 1.0)
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(OMD, eq.Last()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3000):
            model.values = torch.tensor([1.0, 20.0] if step // 600 % 2 else [20.0, 1.0])
            mol(model())


def test_a_loss_that_jumped_back_is_told_from_one_that_cannot_fall():
    """As at a learning rate that is too high: the largest loss falls to a tenth, and is at its start ever after."""
    model = Fixed(2.3, 0.9)
    mol = eq.MultiObjective(model, None, {"digit": 0.5, "ink": 0.5}, method=(OMD, eq.Last()))

    def train() -> None:
        for step in range(2500):
            fallen = 0.1 if 25 <= step < 75 else 1.0
            mol({"digit": model()[0] * fallen, "ink": model()[1]})

    with pytest.warns(
        BalanceWarning, match="if digit jumped back from a lower loss, divide the learning rate by up to 2"
    ):
        train()


def test_a_loss_that_is_zero_needs_nothing():
    """Such as a hinge that is satisfied."""
    model = Fixed(1.0, 0.0)
    mol = eq.MultiObjective(model, None, {"length": 0.5, "hinge": 0.5}, method=(OMD, eq.Last()))
    for _ in range(2500):
        mol(model())  # a warning is an error in tests
    assert float(mol.history.duals[-1, 1]) == 0
