"""Limits in a training loop: the call, the answer, the metrics, the warning and bad input."""

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq


def parabolas(model: nn.Module) -> dict[str, Tensor]:
    """X² and (x − 2)²: with the second at most 1/4, x = 3/2, at the price 3."""
    x = next(model.parameters()).sum()
    return {"size": x**2, "error": (x - 2) ** 2}


def train(mol: eq.MultiObjective, optimizer: torch.optim.Optimizer, steps: int, losses: Any = parabolas) -> None:
    for _ in range(steps):
        mol(losses(mol.model)).backward()
        optimizer.step()
        optimizer.zero_grad()


def make(preference: Any = None, **settings: Any) -> tuple[eq.MultiObjective, torch.optim.Optimizer]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    preference = {"size": 1.0} if preference is None else preference
    return eq.MultiObjective(model, optimizer, preference, **{"limits": {"error": 0.25}, **settings}), optimizer


def test_the_answer_meets_the_limit_and_the_metrics_say_so():
    mol, optimizer = make()
    train(mol, optimizer, 600)
    assert isinstance(mol.conversion, eq.Average)
    assert mol.solution()["weight"].item() == pytest.approx(1.5, abs=1e-3)
    metrics = mol.metrics()
    assert metrics["multiplier/error"] == pytest.approx(3.0, rel=1e-2)
    assert metrics["violation/error"] == pytest.approx(0.0, abs=1e-2)
    assert metrics["slack/error"] == pytest.approx(0.0, abs=1e-2)
    assert metrics["tch"] == pytest.approx(2.25, rel=1e-2)
    assert mol.history.losses[-1].tolist() == pytest.approx([2.25, 0.25], rel=1e-2)


def test_losses_may_come_in_order():
    named, ordered = make(), make([1.0], limits=[0.25])
    train(*named, 50)
    train(*ordered, 50, lambda model: list(parabolas(model).values()))
    assert torch.equal(named[0].solution()["weight"], ordered[0].solution()["weight"])


def test_a_loss_that_must_not_be_too_small_either():
    mol, optimizer = make(limits={"error": (0.5, 1.0)})
    train(mol, optimizer, 600)
    assert mol.solution()["weight"].item() == pytest.approx(1.0, abs=2e-2)
    mol, optimizer = make({"error": 1.0}, limits={"size": (0.5, 1.0)})
    train(mol, optimizer, 600)
    assert mol.solution()["weight"].item() == pytest.approx(1.0, abs=1e-2)


def test_several_free_losses_share_by_their_preference():
    def losses(model: nn.Linear) -> dict[str, Tensor]:
        x = model.weight.sum()
        return {"left": x**2, "right": (x - 4) ** 2, "near": (x - 1) ** 2}

    for limit, answer in ((0.25, 1.5), (9.0, 2.0)):
        mol, optimizer = make({"left": 0.5, "right": 0.5}, limits={"near": limit})
        optimizer.param_groups[0]["lr"] = 0.02
        train(mol, optimizer, 1500, losses)
        assert mol.solution()["weight"].item() == pytest.approx(answer, abs=2e-2)


def test_a_proxy_lets_the_multiplier_see_the_rate():
    torch.manual_seed(0)
    x, y = torch.randn(400, 2), torch.rand(400) < 0.3
    x[y] += 1.0
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    mol = eq.MultiObjective(model, optimizer, {"error": 1.0}, limits={"missed": 0.1})
    for _ in range(800):
        score = model(x).squeeze(1)
        error = nn.functional.binary_cross_entropy_with_logits(score, y.float())
        missed = eq.proxy(torch.relu(1 - score[y]).mean(), (score[y] < 0).float().mean())
        mol({"error": error, "missed": missed}).backward()
        optimizer.step()
        optimizer.zero_grad()
    with mol.solution_weights(), torch.no_grad():
        rate = (model(x).squeeze(1)[y] < 0).float().mean().item()
    assert rate == pytest.approx(0.1, abs=0.015)


def test_a_limit_on_a_group_with_hardly_a_sample_in_a_batch_is_kept():
    """Squares of one or two samples are skewed: clipped to a fixed number, their mean would look too small."""
    torch.manual_seed(4)
    x, few = torch.randn(20_000, 3), torch.rand(20_000) < 0.02
    y = torch.where(few, x[:, 1], x[:, 0]) + 0.3 * torch.randn(20_000)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
    mol = eq.MultiObjective(model, optimizer, {"error": 1.0}, limits={"few": 0.6})
    for _ in range(4000):
        some = torch.randint(len(x), (64,))
        squares, k = (model(x[some]).squeeze(1) - y[some]).square(), few[some].sum()
        losses = {"error": squares.mean(), "few": squares[few[some]].sum() / k.clamp(min=1)}
        mol(losses, counts={"error": 64.0, "few": float(k)}).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.load_state_dict(mol.solution())
    assert (model(x).squeeze(1) - y).square()[few].mean() < 1.05 * 0.6


def test_noise_alone_is_no_reason_to_warn():
    """The mean of a batch lies far from its limit, on either side, while the model meets it."""
    generator, x = torch.Generator().manual_seed(0), torch.nn.Parameter(torch.tensor([0.5]))
    optimizer = torch.optim.SGD([x], lr=0.01)
    mol = eq.MultiObjective(torch.nn.ParameterDict({"x": x}), optimizer, {"far": 1.0}, limits={"near": (-0.02, 0.02)})
    for _ in range(2100):
        mol({"far": (x[0] - 1) ** 2, "near": x[0] + 0.3 * torch.randn((), generator=generator)}).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert abs(mol.solution()["x"].item()) < 0.05


def test_a_limit_that_cannot_be_met_is_said_once():
    mol, optimizer = make(limits={"error": -0.5})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(mol, optimizer, 1500)
    text = [str(one.message) for one in said if one.category is eq.errors.LimitWarning]
    assert len(text) == 1
    assert re.match(
        r"error must be at most -0\.5; found 10\d % more on average .* multiplier that keeps growing", text[0]
    )
    metrics = mol.metrics()
    assert metrics["violation/error"] > 0.9
    assert metrics["multiplier/error"] > 10
    assert all(bool(torch.isfinite(x).all()) for x in mol.solution().values())


def test_a_free_loss_of_zero_is_said_too():
    """Its size is what multipliers are measured in."""
    mol, optimizer = make()
    nn.init.zeros_(next(mol.model.parameters()))
    with pytest.warns(
        eq.errors.LimitWarning, match=r"free loss is close to 0 \(its mean is 0\), give Limits its size="
    ):
        train(mol, optimizer, 600)
    assert mol.metrics()["violation/error"] == pytest.approx(15.0)
    method = (eq.Limits((None, 0.25), size=1.0), eq.Average(power=8))
    sized, optimizer = make({"size": 1.0, "error": 0.0}, limits=None, method=method)
    nn.init.zeros_(next(sized.model.parameters()))
    train(sized, optimizer, 600)
    assert sized.solution()["weight"].item() == pytest.approx(1.5, abs=1e-2)


def test_a_limit_that_is_met_late_is_no_reason_to_warn():
    mol, optimizer = make()
    optimizer.param_groups[0]["lr"] = 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(mol, optimizer, 3000)


def test_a_resumed_run_is_the_run_that_was_not_interrupted():
    whole, optimizer = make()
    train(whole, optimizer, 40)
    first, before = make()
    train(first, before, 17)
    second, after = make()
    second.model.load_state_dict(first.model.state_dict())
    after.load_state_dict(before.state_dict())
    second.load_state_dict(first.state_dict())
    train(second, after, 23)
    assert torch.equal(second.solution()["weight"], whole.solution()["weight"])
    assert second.metrics() == whole.metrics()


def test_an_absent_loss_leaves_its_multiplier():
    mol, optimizer = make()
    train(mol, optimizer, 20)
    before = mol.metrics()["multiplier/error"]
    for _ in range(5):
        mol(parabolas(mol.model), counts={"size": 4, "error": 0}).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = mol._run.weights.state
    assert mol.metrics()["coefficient/error"] != 0
    assert mol.metrics()["multiplier/error"] == pytest.approx(before, rel=0.3)  # prices stay, the proportional part too
    assert float(state.steps) == 25


@pytest.mark.parametrize(
    ("preference", "settings", "message"),
    [
        (None, {"limits": {"size": 0.5}}, r"limits must be of other losses than the preference; found \['size'\]"),
        (None, {"limits": [0.5]}, "limits must be a mapping from names to limits, as the preference is"),
        ([1.0], {"limits": {"error": 0.5}}, "limits must be a mapping from names to limits"),
        (None, {"limits": {"error": None}}, r"limits must be numbers or pairs \(least, most\); found \(None,\)"),
        (None, {"limits": {}}, "limits must limit at least one loss"),
        (None, {"limits": 0.5}, "or a list as it is; found 0.5"),
        (None, {"units": "start"}, "limits must be given without units and ideal.*; found units=start, ideal=0.0"),
        (None, {"ideal": 0.1}, "limits must be given without units and ideal"),
        (None, {"method": (eq.OMD(), eq.Suffix())}, r"the conversion must be Average\(\) or Last\(\).*; found Suffix"),
        (None, {"method": "AdaOMDgd-TCH"}, r"the conversion must be Average\(\) or Last\(\)"),
        (None, {"method": (eq.MGDA(), eq.Last())}, "among must be a weighting by losses"),
    ],
)
def test_misuse_is_refused(preference, settings, message):
    with pytest.raises(ValueError, match=message):
        make(preference, **settings)


def test_the_last_iterate_may_be_asked_for():
    mol, optimizer = make(method=(eq.SelfTuned(), eq.Last()))
    train(mol, optimizer, 300)
    assert mol.solution()["weight"].item() == pytest.approx(1.5, abs=1e-2)
