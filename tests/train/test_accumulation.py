"""Gradient accumulation: which calls count, and with which coefficients."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise.host import fetch
from equipoise.train.distributed import Seen
from equipoise.train.step import Call, Step, mean_of_calls

ADAPTIVE = eq.Adaptive(capacity=3)
SIMULTANEOUS = {"OMD": eq.OMD(), "LS": eq.Linear(), "relative": eq.Relative(eq.OMD())}
AHEAD = {
    "TCH": eq.Tchebycheff(),
    "STCH": eq.SmoothTchebycheff(0.1),
    "GroupDRO": eq.OMD(0.5, eq.Entropic(), order="alternating"),
    "momentum": eq.Momentum(eq.SmoothTchebycheff(0.1)),
    "MGDA": eq.MGDA(),
    "ExcessMTL": eq.ExcessRisk(),
}


def over(cases: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("weighting", cases.values(), ids=cases.keys())


def micro_batches(run: Any, step: int, parts: int) -> list[torch.Tensor]:
    x, y = run.batch(step)
    return [(run.model(a) - b).square().mean(0) for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True)]


def accumulate(run: Any, mol: eq.MultiObjective, step: int, parts: int = 4) -> None:
    for losses in micro_batches(run, step, parts):
        (mol(losses) / parts).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


@over(SIMULTANEOUS)
def test_accumulating_is_the_large_batch(weighting, toy, preference):
    """Coefficients that a step knows beforehand: four calls of four samples are one of sixteen."""
    small, large = toy(dtype=torch.float64), toy(dtype=torch.float64)
    w = preference.double()
    left = eq.MultiObjective(small.model, small.optimizer, w, method=(weighting, ADAPTIVE))
    right = eq.MultiObjective(large.model, large.optimizer, w, method=(weighting, ADAPTIVE))
    for step in range(12):
        accumulate(small, left, step)
        large.run(right, 1, step)
    assert left.step == right.step == 12
    torch.testing.assert_close(small.params(), large.params())
    torch.testing.assert_close(left.state_dict()["tensors"], right.state_dict()["tensors"], equal_nan=True)
    torch.testing.assert_close(left.solution(), right.solution())


def test_many_calls_count_where_zero_grad_leaves_zeros(toy, preference):
    run, large = toy(dtype=torch.float64), toy(dtype=torch.float64)
    mol = eq.MultiObjective(run.model, run.optimizer, preference.double(), method="LS")
    for step in range(2):
        for losses in micro_batches(run, step, 16):
            (mol(losses) / 16).backward()
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=False)
    assert mol.step == 2
    large.run(eq.MultiObjective(large.model, large.optimizer, preference.double(), method="LS"), 2)
    torch.testing.assert_close(run.params(), large.params())


@over(AHEAD)
def test_weightings_that_look_at_this_steps_losses_use_the_coefficients_of_the_step_before(weighting, toy, preference):
    run, oracle = toy(dtype=torch.float64), toy(dtype=torch.float64)
    w = preference.double()
    mol = eq.MultiObjective(run.model, run.optimizer, w, method=(weighting, eq.Last()))
    params = list(oracle.model.parameters())
    c, state = None, None
    factor = 3 if weighting.uses_duals else 1  # uniform λ is the weighted sum
    for step in range(6):
        losses = oracle.losses(step)
        rows = torch.stack(
            [torch.cat([g.flatten() for g in torch.autograd.grad(f, params, retain_graph=True)]) for f in losses]
        )
        extra = {need: {"jacobian": rows, "gramian": rows @ rows.T}[need] for need in weighting.needs}
        if c is None:
            # The first step has none before it: those of its first call serve.
            state = weighting.init(losses, **extra)
            first = micro_batches(oracle, step, 4)[0]
            J = torch.stack(
                [torch.cat([g.flatten() for g in torch.autograd.grad(f, params, retain_graph=True)]) for f in first]
            )
            given_first = {need: {"jacobian": J, "gramian": J @ J.T}[need] for need in weighting.needs}
            c, _ = weighting.update(first, state, w, **given_first)
        (factor * c * losses).sum().backward()
        c, state = weighting.update(losses, state, w, **extra)
        oracle.optimizer.step()
        oracle.optimizer.zero_grad()
        accumulate(run, mol, step)
    torch.testing.assert_close(run.params(), oracle.params())


def test_tracked_gradients_give_one_direction_a_step(toy, preference):
    """MoCo's step is −Σ c_i Y_i with the Y of the step before: the calls of a step must not add up to several."""
    run = toy(dtype=torch.float64)
    weighting = eq.MoCo(0.5, tracking=0.5)
    mol = eq.MultiObjective(run.model, run.optimizer, preference.double(), method=(weighting, eq.Last()))
    for step in range(3):
        accumulate(run, mol, step)
    before = run.params()
    c, Y = mol._run.weights.coefficients, mol._run.weights.state.tracked
    accumulate(run, mol, 3)
    moved = torch.cat([(before[name] - p).flatten() for name, p in run.params().items()])
    torch.testing.assert_close(moved, 0.05 * c @ Y)


def test_an_incomplete_last_step_does_not_change_the_rule(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Tchebycheff(), eq.Last()))
    accumulate(run, mol, 0)
    held = mol._run.weights.coefficients.clone()
    losses = run.losses(1)
    torch.testing.assert_close(mol(losses), (held * losses).sum())


def test_losses_are_weighted_by_their_counts(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()))
    for value, counts in [([1.0, 2.0, 0.0], [3, 1, 0]), ([5.0, 2.0, 0.0], [1, 1, 0])]:
        (run.losses(0) * 0 + torch.tensor(value)).sum()
        mol(run.losses(0) * 0 + torch.tensor(value), counts).backward()
    run.optimizer.step()
    metrics = mol.metrics()
    assert metrics["loss/0"] == 2.0  # (3·1 + 1·5)/4
    assert metrics["loss/1"] == 2.0
    assert metrics["loss/2"] != metrics["loss/2"]  # never seen


def test_gradients_are_weighted_by_their_counts(toy, preference):
    """For a method on gradients, a call of four samples and one of twelve are one of sixteen."""
    found = []
    for parts in ([4, 12], [16]):
        run = toy(dtype=torch.float64)
        mol = eq.MultiObjective(run.model, run.optimizer, preference.double(), method=(eq.MGDA(), eq.Last()))
        x, y = run.batch(0)
        for a, b in zip(x.split(parts), y.split(parts), strict=True):
            mol((run.model(a) - b).square().mean(0), [len(a)] * 3).backward()
        run.optimizer.step()
        found.append(mol.state_dict()["tensors"]["following"])
    torch.testing.assert_close(*found)


def test_an_absent_objective_keeps_its_coefficient_for_the_next_step(toy, preference):
    """Or a rare group would count only when it is there in two steps running."""
    run = toy()
    weighting = eq.OMD(0.5, eq.Entropic(), order="alternating")
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(weighting, eq.Last()))
    for counts in ([8, 8, 2], [8, 8, 0]):
        for _ in range(2):
            mol(run.losses(0), counts).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        held = mol._run.weights.coefficients.clone()
    assert held[2] > 0
    losses = run.losses(1)
    torch.testing.assert_close(mol(losses, [8, 8, 2]), (held * losses).sum())
    torch.testing.assert_close(mol(losses, [8, 8, 0]), (held * losses)[:2].sum())


# Which calls count ----------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [0, 1, 2])
@over({**SIMULTANEOUS, **AHEAD})
def test_calls_before_a_closure_and_in_it_count_together(weighting, inside: int, toy, preference):
    """Frameworks hand a closure with the last micro-batch to the optimizer, or one that does nothing."""
    ours, theirs = toy(momentum=0.5), toy(momentum=0.5)
    left = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(weighting, ADAPTIVE))
    right = eq.MultiObjective(theirs.model, theirs.optimizer, preference, method=(weighting, ADAPTIVE))
    for step in range(4):

        def differentiate(chosen: slice, step: int = step) -> None:
            for losses in micro_batches(ours, step, 4)[chosen]:
                (left(losses) / 4).backward()

        differentiate(slice(4 - inside))
        ours.optimizer.step(lambda: differentiate(slice(4 - inside, 4)))
        ours.optimizer.zero_grad()
        accumulate(theirs, right, step)
    assert left.step == right.step == 4
    torch.testing.assert_close(ours.params(), theirs.params(), rtol=0, atol=0)
    torch.testing.assert_close(
        left.state_dict()["tensors"], right.state_dict()["tensors"], rtol=0, atol=0, equal_nan=True
    )


def test_a_step_that_is_not_taken_leaves_nothing(toy, preference):
    """As when a gradient scaler skips it: the gradients are cleared, and with them the call."""
    skipping, plain = toy(), toy()
    left = eq.MultiObjective(skipping.model, skipping.optimizer, preference, method=(eq.Tchebycheff(), ADAPTIVE))
    right = eq.MultiObjective(plain.model, plain.optimizer, preference, method=(eq.Tchebycheff(), ADAPTIVE))
    for step in range(4):
        left(skipping.losses(step + 4)).backward()
        skipping.optimizer.zero_grad()
        skipping.run(left, 1, step)
    plain.run(right, 4)
    torch.testing.assert_close(
        left.state_dict()["tensors"], right.state_dict()["tensors"], rtol=0, atol=0, equal_nan=True
    )
    torch.testing.assert_close(skipping.params(), plain.params(), rtol=0, atol=0)


def test_gradients_may_be_cleared_between_call_and_backward(toy, preference):
    skipping, plain = toy(), toy()
    left = eq.MultiObjective(skipping.model, skipping.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    right = eq.MultiObjective(plain.model, plain.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    for step in range(4):
        for skipped in (True, False):
            scalar = left(skipping.losses(step + 4 * skipped))
            skipping.optimizer.zero_grad()
            scalar.backward()
        skipping.optimizer.step()
    plain.run(right, 4)
    torch.testing.assert_close(
        left.state_dict()["tensors"], right.state_dict()["tensors"], rtol=0, atol=0, equal_nan=True
    )
    assert not left.state_dict()["accumulates"]


def test_gradients_that_are_set_to_zero_need_a_word(toy, preference):
    skipping, plain = toy(), toy()
    left = eq.MultiObjective(skipping.model, skipping.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    right = eq.MultiObjective(plain.model, plain.optimizer, preference, method=(eq.OMD(), ADAPTIVE))
    left(skipping.losses(5)).backward()
    skipping.optimizer.zero_grad(set_to_none=False)
    left.discard()
    skipping.run(left, 2)
    plain.run(right, 2)
    torch.testing.assert_close(
        left.state_dict()["tensors"], right.state_dict()["tensors"], rtol=0, atol=0, equal_nan=True
    )


def test_a_scalar_that_is_thrown_away_does_not_count(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()))
    mol(run.losses(0) + 100.0)
    losses = run.losses(1)
    mol(losses).backward()
    run.optimizer.step()
    assert [mol.metrics()[f"loss/{i}"] for i in range(3)] == losses.tolist()


def test_a_parameter_that_is_frozen_between_two_calls(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.MGDA(), ADAPTIVE), parameters=["0.weight"])
    mol(run.losses(0)).backward()
    run.model[0].bias.requires_grad_(False)
    rule = "parameters that require grad must stay the same between the calls of a step; found gradients of 49 and 41"
    with pytest.raises(ValueError, match=rule):
        mol(run.losses(1)).backward()


def test_calls_of_one_backward_pass_count_together(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.Linear(), eq.Last()))
    first, second = run.losses(0), run.losses(1)
    (mol(first) + mol(second)).backward()
    run.optimizer.step()
    mean = (first + second) / 2
    assert [mol.metrics()[f"loss/{i}"] for i in range(3)] == pytest.approx(mean.tolist())


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-5, 5), min_size=2, max_size=2), st.lists(st.integers(0, 4), min_size=2, max_size=2)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_mean_is_that_of_all_samples(calls):
    step = Step()
    for values, counts in calls:
        n = torch.tensor(counts, dtype=torch.float64)
        f, rows = torch.tensor(values, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        call = Call(Seen(f, n, None, n > 0), fetch(f), fetch(n), rows)
        step.add(call)
        step.differentiated(call, lambda: False)
    mean = mean_of_calls([(call.seen.values, call.seen.counts) for call in step.calls])
    jacobian = step.jacobian()
    for i in range(2):
        samples = [values[i] for values, counts in calls for _ in range(counts[i])]
        assert mean.mask is not None
        assert bool(mean.mask[i]) == bool(samples)
        if samples:
            assert float(mean.values[i]) == pytest.approx(sum(samples) / len(samples), abs=1e-12)
            assert jacobian is not None
            assert float(jacobian[i, i]) == pytest.approx(1.0)
