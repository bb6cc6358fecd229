"""A sweep: every preference begins where the shared part ended, in any order, after any interruption."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import DamagedFileError, StateMismatchError
from equipoise.train.steering import write_wish

W = eq.preference.linspace(5, margin=0.1)


class Loop:
    """VLMOP2 in two variables, with a schedule for each training and a count of them."""

    def __init__(self, schedule: bool = True, **settings: Any) -> None:
        self.x = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
        self.model = torch.nn.ParameterDict({"x": self.x})
        self.optimizer = torch.optim.SGD([self.x], lr=0.05, momentum=0.5)
        self.mol = eq.MultiObjective(self.model, self.optimizer, [0.5, 0.5], **settings)
        self.schedule, self.stop_after = schedule, 99
        self.trained: list[tuple[list[float], int, float]] = []

    def losses(self) -> torch.Tensor:
        return eq.problems.VLMOP2(d=2).losses(self.x)

    def train(self, steps: int) -> None:
        if len(self.trained) == self.stop_after:
            raise KeyboardInterrupt
        w = [round(entry, 4) for entry in self.mol.preference.tolist()]
        self.trained.append((w, steps, self.optimizer.param_groups[0]["lr"]))
        course = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps) if self.schedule else None
        for _ in range(steps):
            self.mol(self.losses()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if course is not None:
                course.step()

    def sweep(self, preferences: Any = W, first: int = 60, then: int = 20, **settings: Any) -> list[eq.train.Swept]:
        return eq.sweep(self.mol, preferences, self.train, first=first, then=then, **settings)


def same(a: list[eq.train.Swept], b: list[eq.train.Swept]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(torch.equal(p.solution["x"], q.solution["x"]) and p.metrics == q.metrics for p, q in pairs)


def test_a_sweep_meets_every_preference():
    loop = Loop(schedule=False)
    answers = loop.sweep(first=250, then=150)
    assert [answer.steps for answer in answers] == [150] * 5
    for w, answer in zip(W, answers, strict=True):
        assert torch.equal(answer.preference, w)
        f = eq.problems.VLMOP2(d=2).losses(answer.solution["x"].double())
        assert float(eq.metrics.imbalance(f, w)) < 0.03
        assert answer.metrics["step"] >= 150


def test_each_begins_where_the_central_one_ended():
    """With its optimizer and λ, whatever was trained in between."""
    loop = Loop(schedule=False)
    answers = loop.sweep()
    for k in range(5):
        by_hand = Loop(schedule=False)
        by_hand.mol.set_preference(W[2])
        by_hand.train(60)
        by_hand.mol._run.restart(W[k].float())  # as set_preference, also for the present one
        by_hand.train(20)
        assert torch.equal(answers[k].solution["x"], by_hand.mol.solution()["x"])
        assert answers[k].metrics == by_hand.mol.metrics()
    assert [w[0] for w, _, _ in loop.trained] == [0.5, 0.1, 0.3, 0.5, 0.7, 0.9]
    assert [steps for _, steps, _ in loop.trained] == [60, 20, 20, 20, 20, 20]


def test_the_step_of_a_schedule_goes_on_from_the_shared_part():
    loop, begun = Loop(), []

    def train(steps):
        begun.append(loop.mol.step)
        loop.train(steps)

    eq.sweep(loop.mol, W, train, first=60, then=20)
    assert begun == [0, 60, 60, 60, 60, 60]


def test_a_schedule_restarts_with_the_learning_rate_of_the_start():
    loop = Loop()
    loop.sweep()
    assert [rate for _, _, rate in loop.trained] == [0.05] * 6


def stepping(loop: Loop, rates: list[float], after: Callable[[], object]) -> Callable[[int], None]:
    """Train with what is called after each step."""

    def train(steps: int) -> None:
        for _ in range(steps):
            rates.append(loop.optimizer.param_groups[0]["lr"])
            loop.mol(loop.losses()).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            after()

    return train


@pytest.mark.parametrize("stop_after", [None, 60])
def test_a_scheduler_that_goes_on_through_the_parts_is_said_once(stop_after, tmp_path):
    def run(boom: int | None) -> list[float]:
        loop, rates = Loop(schedule=False), list[float]()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, 80)

        def after() -> None:
            scheduler.step()
            if len(rates) == boom:
                raise KeyboardInterrupt

        eq.sweep(loop.mol, W, stepping(loop, rates, after), first=60, then=20, folder=tmp_path)
        return rates

    if stop_after is not None:  # all of the first preference is left
        with pytest.raises(KeyboardInterrupt):
            run(stop_after + 1)
    with pytest.warns(UserWarning, match=r"rate of a preference rose to 0\.0[0-9]*, above the 0\.05 of the") as said:
        rates = run(None)
    assert len(said) == 1
    assert "Let the rate depend on mol.step, or make the scheduler inside train" in str(said[0].message)
    assert max(rates) > 0.05


def test_a_rate_that_depends_on_the_step_is_not_warned_of():
    """Also after a warm-up, where the optimizer has a low rate when the sweep begins."""
    loop, rates = Loop(schedule=False), list[float]()

    def after() -> None:
        t = loop.mol.step
        loop.optimizer.param_groups[0]["lr"] = 0.05 * min(1.0, t / 10) * (1 - t / 81)

    loop.optimizer.param_groups[0]["lr"] = 0.001
    eq.sweep(loop.mol, W, stepping(loop, rates, after), first=60, then=20)
    assert rates[0] == 0.001
    assert rates[61] > 0.01
    assert not loop.optimizer._optimizer_step_pre_hooks.keys() - {loop.mol._run.attached.handles[0].id}  # type: ignore[union-attr]


def test_the_answers_are_in_the_users_order():
    shuffled = W[[3, 0, 4, 2, 1]]
    assert same(Loop().sweep(shuffled), [Loop().sweep()[k] for k in (3, 0, 4, 2, 1)])


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3, 5])
def test_a_sweep_that_was_stopped_goes_on_bit_for_bit(stop_after, tmp_path):
    whole = Loop().sweep()
    first = Loop()
    first.stop_after = stop_after
    with pytest.raises(KeyboardInterrupt):
        first.sweep(folder=tmp_path)
    second = Loop()
    again = second.sweep(folder=tmp_path)
    assert same(again, whole)
    assert len(second.trained) == 6 - stop_after
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"answer-{k}.pt" for k in range(5)]
    third = Loop()
    assert same(third.sweep(folder=tmp_path), whole)
    assert third.trained == []


def test_with_a_seed_for_each_part_random_numbers_are_resumed_too(tmp_path):
    def run(stop_after: int, **settings: Any) -> list[eq.train.Swept]:
        loop, left = Loop(), [stop_after]

        def train(steps: int) -> None:
            torch.manual_seed(loop.mol.step)
            for _ in range(steps):
                loop.mol(loop.losses() * (1 + 0.1 * torch.randn(2))).backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

        return eq.sweep(loop.mol, W, train, first=60, then=20, **settings)

    for stop_after in (30, 90, 25):  # in the shared part, in the second preference, and in the third one
        with pytest.raises(KeyboardInterrupt):
            run(stop_after, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer-0.pt", "answer-1.pt", "trunk.pt"]
    assert same(run(0, folder=tmp_path), run(0))


def test_an_answer_that_was_deleted_is_trained_again_with_the_shared_part(tmp_path):
    whole = Loop().sweep(folder=tmp_path)
    (tmp_path / "answer-4.pt").unlink()
    again = Loop()
    assert same(again.sweep(folder=tmp_path), whole)
    assert [w[0] for w, _, _ in again.trained] == [0.5, 0.9]


def test_a_damaged_file_is_named(tmp_path):
    Loop().sweep(folder=tmp_path)
    path = tmp_path / "answer-1.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"answer-1\.pt"):
        Loop().sweep(folder=tmp_path)
    eq.train.save({"something": 1}, path)
    with pytest.raises(DamagedFileError, match="must be a file of a sweep"):
        Loop().sweep(folder=tmp_path)


def test_the_folder_of_another_sweep_is_refused(tmp_path):
    Loop().sweep(folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StateMismatchError, match="another sweep: first must be 50; found 60"):
        Loop().sweep(first=50, folder=tmp_path)
    with pytest.raises(StateMismatchError, match="another sweep: preferences must be"):
        Loop().sweep(W.flip(0), folder=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("stop_after", [1, 3, 99])
@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"method": "LS"}, r"weighting must be Linear; found SelfTuned"),
        ({"units": [100.0, 1.0]}, r"units must be \(100\.0, 1\.0\); found None"),
        ({"every": 2}, r"every must be 2; found 1"),
    ],
)
def test_the_folder_of_another_run_is_refused(settings, differs, stop_after, tmp_path):
    loop = Loop()
    loop.stop_after = stop_after
    with contextlib.suppress(KeyboardInterrupt):
        loop.sweep(folder=tmp_path)
    other = Loop(**settings)
    with pytest.raises(StateMismatchError, match=rf"\.pt is of another sweep, use a new folder: .*{differs}"):
        other.sweep(folder=tmp_path)
    assert other.trained == []


def test_the_folder_of_another_model_is_refused(tmp_path):
    loop = Loop()
    loop.sweep(folder=tmp_path)
    model = torch.nn.ParameterDict({"y": torch.nn.Parameter(torch.zeros(3))})
    mol = eq.MultiObjective(model, torch.optim.SGD(model.parameters(), lr=0.1), [0.5, 0.5])
    with pytest.raises(StateMismatchError, match=r"parameters must be \{'y': \(\(3,\), .*found \{'x': \(\(2,\), "):
        eq.sweep(mol, W, loop.train, first=60, then=20, folder=tmp_path)


def test_the_folder_of_an_earlier_version_is_refused(tmp_path):
    Loop().sweep(folder=tmp_path)
    path = tmp_path / "answer-0.pt"
    content = eq.train.load(path)
    del content["sweep"]["configuration"]
    eq.train.save(content, path)
    with pytest.raises(StateMismatchError, match=r"answer-0\.pt must have .* of an earlier version: use a new folder"):
        Loop().sweep(folder=tmp_path)


def test_a_run_that_has_been_trained_goes_on_from_there():
    loop = Loop(schedule=False)
    loop.train(30)
    answer = loop.sweep([[0.5, 0.5]], first=1, then=1)[0]
    by_hand = Loop(schedule=False)
    by_hand.train(31)
    assert torch.equal(answer.solution["x"], by_hand.x)  # θ of the only step since the shared one


def test_training_without_a_step_is_said():
    loop = Loop()
    with pytest.warns(UserWarning, match=r"train\(1\) took no step for the preference \[0.5, 0.5\]") as said:
        eq.sweep(loop.mol, [[0.5, 0.5]], lambda _: None, first=7, then=1)
    assert any("nothing was recorded" not in str(one.message) for one in said)


@pytest.mark.parametrize("part", [0, 2])
def test_a_preference_that_changes_inside_train_is_an_error(part, tmp_path):
    loop = Loop(schedule=False)
    parts: list[int] = []

    def train(steps):
        loop.train(steps)
        if len(parts) == part:
            loop.mol.set_preference([0.2, 0.8])
        parts.append(loop.mol.step)
        loop.train(1)

    with pytest.raises(ValueError, match=r"must stay while a sweep trains.* found a change after step (60|81)$"):
        eq.sweep(loop.mol, W, train, first=60, then=20, folder=tmp_path)
    assert len(parts) == part + 1
    assert len(list(tmp_path.iterdir())) == part  # the end of the shared part, and one answer


def test_a_wish_during_a_sweep_is_an_error(tmp_path):
    loop = Loop(schedule=False)

    def train(steps):
        loop.train(1)
        write_wish(tmp_path, [0.2, 0.8])
        loop.train(steps)

    with (
        pytest.raises(ValueError, match="nor request another preference of a steered run"),
        eq.train.steered(loop.mol, tmp_path, every=1e-9),
    ):
        eq.sweep(loop.mol, W, train, first=60, then=20)


def test_preferences_by_name():
    x = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
    optimizer = torch.optim.SGD([x], lr=0.05)
    mol = eq.MultiObjective(torch.nn.ParameterDict({"x": x}), optimizer, {"left": 0.5, "right": 0.5})

    def train(steps):
        for _ in range(steps):
            mol(eq.problems.VLMOP2(d=2).losses(x)).backward()
            optimizer.step()
            optimizer.zero_grad()

    named = [{"left": 0.25, "right": 0.75}, {"right": 0.5, "left": 0.5}]
    answers = eq.sweep(mol, named, train, first=2, then=np.int64(3))  # type: ignore[arg-type]
    assert [answer.preference.tolist() for answer in answers] == [[0.25, 0.75], [0.5, 0.5]]
    assert [answer.steps for answer in answers] == [3, 3]
    with pytest.raises(ValueError, match=r"must have the names \['left', 'right'\], as the run has; found \['left'\]"):
        eq.sweep(mol, [{"left": 1.0}], train, first=1, then=1)


def test_misuse(tmp_path):
    loop = Loop()
    with pytest.raises(ValueError, match=r"preference must have 2 entries, one per objective; found 3"):
        loop.sweep([[0.2, 0.3, 0.5]])
    with pytest.raises(ValueError, match=r"sum to 1; found sum 1\.1"):
        loop.sweep([[0.5, 0.6]])
    with pytest.raises(ValueError, match=r"preferences must have shape \(n, m\)"):
        loop.sweep([0.5, 0.5])
    with pytest.raises(ValueError, match="preferences must differ"):
        loop.sweep([[0.5, 0.5], [0.5, 0.5]])
    for name in ("first", "then"):
        for value in (0, 1.5, True):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1; found {value}"):
                loop.sweep(**wrong)
    with pytest.raises(ValueError, match="train must be a function"):
        eq.sweep(loop.mol, W, 7, first=1, then=1)  # type: ignore[arg-type]
    limited = Loop(limits=[3.0])
    with pytest.raises(ValueError, match="mol must have no limits"):
        eq.sweep(limited.mol, W, limited.train, first=1, then=1)
    with pytest.raises(ValueError, match="preference must be a list, as the objectives of this run have no names"):
        loop.sweep([{"left": 0.5, "right": 0.5}])
    alone = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5])
    with pytest.raises(ValueError, match="mol must have an optimizer for a sweep with a folder"):
        eq.sweep(alone, W, loop.train, first=1, then=1, folder=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder must be a folder"):
        loop.sweep(folder=tmp_path / "file")
    assert loop.trained == []
    loop.mol.close()
    with pytest.raises(ValueError, match="mol must be open"):
        loop.sweep()
