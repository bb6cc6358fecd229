"""A preference that changes during training: λ continues, the archive is cleared, checkpoints hold the change."""

import copy
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import StateMismatchError
from equipoise.weighting.protocol import restarted
from equipoise.weighting.self_tuned import ARRIVED, TRAVELS

W, V = {"left": 0.5, "right": 0.5}, {"left": 0.1, "right": 0.9}


class Loop:
    """Two bowls with their centres at 0 and 2, in three dimensions, and noise on every loss."""

    def __init__(self, preference: Any = W, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.5)
        self.mol = eq.MultiObjective(self.model, self.optimizer, preference, **settings)

    def losses(self, noise: float = 0.0) -> dict[str, torch.Tensor]:
        x = self.model.weight
        return {"left": x.square().sum() * (1 + noise), "right": (x - 2).square().sum() * (1 - noise)}

    def train(self, steps: int, *, noisy: bool = True) -> "Loop":
        for _ in range(steps):
            # The same noise in the same step, also of a run that was resumed.
            noise = 0.1 * noisy * float(torch.randn((), generator=torch.Generator().manual_seed(self.mol.step)))
            self.mol(self.losses(noise)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "mol": self.mol.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> "Loop":
        for name, part in (("model", self.model), ("optimizer", self.optimizer), ("mol", self.mol)):
            part.load_state_dict(state[name])
        return self

    def imbalance(self) -> float:
        with self.mol.solution_weights():
            f = torch.stack([loss.detach() for loss in self.losses().values()])
        return float(eq.metrics.imbalance(f, self.mol.preference))


def test_the_new_trade_off_is_met():
    run = Loop().train(400)
    run.mol.set_preference(V)
    run.train(400)
    assert run.imbalance() < 0.05
    assert run.mol.step == 800
    assert [step for step, _ in run.mol.preferences] == [0, 400]
    assert run.mol.preferences[1][1] == run.mol.preference.tolist()


def test_coefficients_of_the_step_itself_follow_too():
    """STCH has no memory: the model goes where a new run goes."""
    changed, fresh = Loop(method="STCH"), Loop(V, method="STCH")
    changed.train(100, noisy=False).mol.set_preference(V)
    weights = [run.train(1500, noisy=False).model.weight for run in (changed, fresh)]
    torch.testing.assert_close(*weights, rtol=0, atol=0.05)  # 1.0 before, 1.5 now; a smoothed maximum hardly damps


@pytest.mark.parametrize("method", ["MGDA", "OMDeg-TCH", "AdaOMDgd-TCH"])
def test_other_methods_take_it(method):
    run = Loop(method=method).train(5)
    run.mol.set_preference(V)
    assert run.train(5).mol.recorded == 5


def test_lambda_goes_on_and_the_answer_begins_anew():
    run = Loop().train(50)
    duals, old = run.mol.duals, run.mol.solution()["weight"]
    run.mol.set_preference(V)
    assert torch.equal(run.mol.duals, duals)  # type: ignore[arg-type]
    assert run.mol.recorded == 0
    before = run.model.weight.detach().clone()
    run.train(1)
    assert run.mol.recorded == 1
    assert torch.equal(run.mol.solution()["weight"], before)  # θ of the only step since
    assert not torch.equal(before, old)


@pytest.mark.parametrize(
    ("every", "steps", "why"),
    [
        (1, 0, "no step followed the change of the preference"),
        (7, 3, r"of 3 steps none was due for every=7, and record\(\) was not called"),
    ],
)
def test_before_the_next_record_the_answer_is_the_model_at_the_change(every, steps, why):
    run = Loop(every=every).train(15)
    run.mol.set_preference(V)
    before = run.model.weight.detach().clone()
    run.train(steps)
    where = "The solution is the model after step 15, when the preference changed"
    with pytest.warns(UserWarning, match=rf"^nothing was recorded: {why}\. {where}$"):
        assert torch.equal(run.mol.solution()["weight"], before)


def test_before_any_step_nothing_is_said():
    run = Loop()
    run.mol.set_preference(V)
    assert torch.equal(run.mol.solution()["weight"], run.model.weight)


@pytest.mark.parametrize("store", ["device", "host", "folder"])
@pytest.mark.parametrize("saved_after", [0, 30])
def test_a_run_that_is_resumed_across_the_change_is_the_same(store, saved_after, tmp_path):
    def place(name: str) -> Any:
        return tmp_path / name if store == "folder" else store

    whole = Loop(store=place("a")).train(40)
    whole.mol.set_preference(V)
    whole.train(saved_after)
    state = copy.deepcopy(whole.state())
    whole.train(25)
    again = Loop(store=place("b")).load(state).train(25)
    assert again.mol.preferences == whole.mol.preferences
    for name in ("preference", "duals", "coefficients"):
        assert torch.equal(getattr(again.mol, name), getattr(whole.mol, name)), name
    assert torch.equal(again.model.weight, whole.model.weight)
    assert torch.equal(again.mol.solution()["weight"], whole.mol.solution()["weight"])
    whole.mol.close()
    again.mol.close()


def test_a_checkpoint_from_before_the_change_takes_it_back():
    run = Loop().train(20)
    state, w = copy.deepcopy(run.state()), run.mol.preference
    run.mol.set_preference(V)
    run.load(state)
    assert torch.equal(run.mol.preference, w)
    assert run.mol.preferences == [(0, w.tolist())]


@pytest.mark.parametrize(
    "preferences",
    [[], [[0, [0.5, 0.5]], [3, [0.5, 0.6]]], [[0, [0.9, 0.1]]], [[0, [0.5, 0.5]], [-1, [0.5, 0.5]]], "text", [[0]]],
)
def test_preferences_that_no_run_has_are_refused(preferences):
    run = Loop().train(3)
    state = copy.deepcopy(run.state()["mol"]) | {"preferences": preferences}
    before = run.mol.state_dict()
    with pytest.raises(StateMismatchError, match="found preferences"):
        run.mol.load_state_dict(state)
    assert run.mol.state_dict()["preferences"] == before["preferences"]
    assert run.mol.step == 3


def test_misuse():
    run = Loop().train(2)
    with pytest.raises(ValueError, match="preference must have 2 entries, as the run has; found 3"):
        Loop([0.5, 0.5]).mol.set_preference([0.2, 0.3, 0.5])
    with pytest.raises(
        ValueError, match=r"preference must have the names \['left', 'right'\], as the run has; found \['left', 'up'\]"
    ):
        run.mol.set_preference({"left": 0.5, "up": 0.5})
    with pytest.raises(ValueError, match="preference must have 2 entries, as the run has; found 3"):
        run.mol.set_preference([0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match="preference must be a list, as the objectives of this run have no names"):
        eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5]).set_preference({"left": 0.5, "right": 0.5})
    with pytest.raises(ValueError, match=r"sum to 1; found"):
        run.mol.set_preference([0.5, 0.6])
    run.mol(run.losses()).backward()
    for w in (V, W):  # also the present one
        with pytest.raises(ValueError, match=r"between steps, after optimizer\.step.*found 1 backward pass since"):
            run.mol.set_preference(w)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.mol.set_preference(V)
    limited = Loop({"left": 1.0}, limits={"right": 3.0})
    with pytest.raises(ValueError, match="preference of a run with limits must stay"):
        limited.mol.set_preference({"left": 1.0, "right": 0.0})
    with pytest.raises(ValueError, match="preference of a run with limits must stay"):
        limited.mol.set_preference({"left": 1.0})
    run.mol.close()
    with pytest.raises(ValueError, match="mol must be open"):
        run.mol.set_preference(W)


def test_the_present_preference_changes_nothing():
    run, alone = Loop().train(20), Loop().train(20)
    before = run.mol.preferences
    run.mol.set_preference(W)
    assert run.mol.preferences == before
    assert run.mol.recorded == 20
    assert torch.equal(run.train(20).mol.solution()["weight"], alone.train(20).mol.solution()["weight"])


@pytest.mark.parametrize("to_none", [True, False])
def test_after_a_step_that_was_not_taken_it_can_change(to_none):
    run = Loop().train(2)
    for _ in range(2):  # two micro-batches
        run.mol(run.losses()).backward()
    with pytest.raises(ValueError, match=r"or mol\.discard\(\) before; found 2 backward passes since the last step"):
        run.mol.set_preference(V)
    run.optimizer.zero_grad(set_to_none=to_none)
    if not to_none:
        run.mol.discard()
    run.mol.set_preference(V)
    clean = Loop().train(2)
    clean.mol.set_preference(V)
    assert torch.equal(run.train(30).mol.solution()["weight"], clean.train(30).mol.solution()["weight"])


def test_after_steps_that_a_gradient_scaler_skips_it_can_change():
    run = Loop().train(2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(run.mol(run.losses()) * torch.inf).backward()
    scaler.step(run.optimizer)
    scaler.update()
    run.optimizer.zero_grad()
    run.mol.set_preference(V)
    assert [step for step, _ in run.mol.preferences] == [0, 2]


@pytest.mark.parametrize("method", [None, "MGDA"])
def test_a_call_from_before_the_change_cannot_be_differentiated(method):
    run = Loop(method=method).train(2)
    scalar = run.mol(run.losses())
    run.mol.set_preference(V)
    with pytest.raises(ValueError, match="found a change between a call of mol and its backward pass"):
        scalar.backward()
    run.train(1)
    assert (run.mol.step, run.mol.recorded) == (3, 1)


def test_a_call_that_is_never_differentiated_does_not_matter():
    run = Loop().train(2)
    unused = run.mol(run.losses())
    run.mol.set_preference(V)
    run.train(2)
    assert (run.mol.step, run.mol.recorded, unused.requires_grad) == (4, 2, True)


class Travel:
    """VLMOP2 with 10 % noise on every loss."""

    def __init__(self, before: list[float], seed: int = 0) -> None:
        self.problem, self.draw = eq.problems.VLMOP2(), torch.Generator().manual_seed(seed)
        self.x = torch.nn.Parameter(self.problem.initial(1, seed)[0].float())
        self.optimizer = torch.optim.SGD([self.x], lr=0.02)
        self.mol = eq.MultiObjective(torch.nn.ParameterDict({"x": self.x}), self.optimizer, before)

    def train(self, steps: int) -> "Travel":
        for _ in range(steps):
            self.mol(self.problem.losses(self.x) * (1 + 0.1 * torch.randn(2, generator=self.draw))).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def youth(self) -> float:
        return float(self.mol._run.weights.state.youth)

    def imbalance(self) -> float:
        return float(eq.metrics.imbalance(self.problem.losses(self.mol.solution()["x"]), self.mol.preference))


def moved(before: float, after: float, restarted: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """The imbalance 200 steps after a change in step 1,000."""
    monkeypatch.setattr(eq.SelfTuned, "restarted", restarted)
    run = Travel([before, 1 - before]).train(1000)
    run.mol.set_preference([after, 1 - after])
    return run.train(200).imbalance()


RESTARTED = eq.SelfTuned.restarted


def test_the_default_follows_within_a_fifth_of_the_steps(monkeypatch):
    assert moved(0.2, 0.7, RESTARTED, monkeypatch) < 0.06
    assert moved(0.2, 0.7, lambda _, state: state, monkeypatch) > 0.2  # with the clock of the old preference


def test_the_default_follows_across_the_whole_front(monkeypatch):
    def wound_up(self: eq.SelfTuned, state: Any) -> Any:
        """Without a new anchor at the arrival."""
        return RESTARTED(self, state)._replace(youth=torch.zeros_like(state.youth))

    assert moved(0.9, 0.1, RESTARTED, monkeypatch) < 0.05
    assert moved(0.9, 0.1, wound_up, monkeypatch) > 0.08


@pytest.mark.parametrize("steps", [0, 30, 150])
def test_a_run_that_is_resumed_before_or_after_the_arrival_is_the_same(steps):
    run = Travel([0.9, 0.1]).train(500)
    run.mol.set_preference([0.1, 0.9])
    run.train(steps)
    assert run.youth() == (ARRIVED if steps > 100 else TRAVELS)
    again = Travel([0.9, 0.1])
    again.mol.load_state_dict(copy.deepcopy(run.mol.state_dict()))
    again.draw.set_state(run.draw.get_state())
    with torch.no_grad():
        again.x.copy_(run.x)
    for one in (run, again):
        assert one.train(100).youth() == ARRIVED
    assert torch.equal(run.mol.solution()["x"], again.mol.solution()["x"])
    assert torch.equal(run.mol.duals, again.mol.duals)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "clock"), [(0, 0), (4, 4), (400, 5)])
def test_the_clock_goes_back_and_all_else_goes_on(steps, clock):
    weighting, w = eq.SelfTuned(), torch.tensor([0.3, 0.7], dtype=torch.float64)
    state = weighting.init(w)
    for t in range(steps):
        _, state = weighting.update(torch.tensor([1.0 + t % 3, 2.0], dtype=torch.float64), state, w)
    new = weighting.restarted(state)
    assert new.steps.item() == clock
    assert new.youth.item() == (TRAVELS if steps > 5 else state.youth.item())
    for name in set(state._fields) - {"steps", "youth"}:
        assert torch.equal(getattr(new, name), getattr(state, name)), name
    linear = eq.Linear()
    assert linear.restarted(linear.init(w)) == linear.init(w)


def test_what_a_weighting_wraps_goes_back_too_and_one_of_another_class_stays():
    class Own:
        """A weighting that is no `Weighting`."""

    w = torch.tensor([0.3, 0.7], dtype=torch.float64)
    wrapped, state = eq.Momentum(eq.SelfTuned()), eq.Momentum(eq.SelfTuned()).init(w)
    for _ in range(20):
        _, state = wrapped.update(torch.tensor([1.0, 2.0], dtype=torch.float64), state, w)
    new = restarted(wrapped, state)
    assert (new.inner.steps.item(), new.step.item()) == (5, 20)
    assert restarted(Own(), w) is w
