"""Losses by group and batches balanced over groups, and bad input."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq

SKEWED = [0] * 90 + [1] * 7 + [2] * 3
GROUPED = st.integers(1, 5).flatmap(
    lambda m: st.tuples(
        st.just(m), st.lists(st.tuples(st.floats(-5, 5, width=32), st.integers(0, m - 1)), min_size=1, max_size=30)
    )
)


# Losses -----------------------------------------------------------------------------------------
def test_the_mean_of_every_group_and_its_samples():
    losses, counts = eq.group_losses(torch.tensor([1.0, 2.0, 4.0, 6.0]), torch.tensor([3, 0, 0, 0]), m=5)
    assert losses.tolist() == [4.0, 0.0, 0.0, 1.0, 0.0]
    assert counts.tolist() == [3.0, 0.0, 0.0, 1.0, 0.0]


@given(GROUPED)
def test_as_a_loop_over_the_groups_would_have_it(drawn):
    m, samples = drawn
    values = torch.tensor([value for value, _ in samples])
    groups = torch.tensor([group for _, group in samples])
    losses, counts = eq.group_losses(values, groups, m)
    for group in range(m):
        members = values[groups == group]
        assert counts[group] == len(members)
        expected = members.mean() if len(members) > 0 else torch.tensor(0.0)
        torch.testing.assert_close(losses[group], expected, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_group_is_shared_by_its_samples():
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    losses, _ = eq.group_losses(values, torch.tensor([1, 0, 0]), m=3)
    (losses * torch.tensor([10.0, 1.0, 100.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 5.0, 5.0]


def test_a_sample_that_is_not_finite_spoils_its_own_group_only():
    losses, _ = eq.group_losses(torch.tensor([1.0, torch.nan, 3.0]), torch.tensor([0, 1, 0]), m=2)
    assert losses[0] == 2.0
    assert losses[1].isnan()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_half_precision_is_summed_in_float32(dtype, expected):
    values = torch.full((4096,), 1.0, dtype=dtype, requires_grad=True)
    losses, counts = eq.group_losses(values, torch.zeros(4096, dtype=torch.int32), m=1)
    assert losses.dtype == counts.dtype == expected
    assert losses.tolist() == [1.0]
    assert counts.tolist() == [4096.0]
    losses.sum().backward()
    assert values.grad is not None
    assert values.grad.dtype == dtype


@pytest.mark.parametrize(
    ("values", "groups", "m", "message"),
    [
        ([1.0, 2.0], [0, 3], 3, r"groups must lie in 0\.\.2; found 3"),
        ([1.0, 2.0], [-1, 0], 3, r"groups must lie in 0\.\.2; found -1"),
        ([1.0, 2.0], [0], 3, r"groups must be one number per sample, of shape \(2,\); found \(1,\)"),
        ([[1.0, 2.0]], [[0, 1]], 3, r"values must be one loss per sample, of shape \(n,\); found \(1, 2\)"),
        (1.0, 0, 3, r"values must be one loss per sample, of shape \(n,\); found \(\)"),
        ([], [], 3, "values must hold at least one sample; found an empty batch"),
        ([1, 2], [0, 1], 3, "values must be floating-point numbers; found torch.int64"),
        ([1.0, 2.0], [0.0, 1.0], 3, "groups must be whole numbers; found torch.float32"),
        ([1.0, 2.0], [True, False], 2, "groups must be whole numbers; found torch.bool"),
        ([1.0, 2.0], [0, 1], 0, "m must be a whole number of at least 1; found 0"),
        ([1.0, 2.0], [0, 1], 2.0, "m must be a whole number of at least 1; found 2.0"),
    ],
)
def test_a_bad_batch_is_named(values, groups, m, message):
    with pytest.raises(ValueError, match=message):
        eq.group_losses(torch.tensor(values), torch.tensor(groups), m)


def test_groups_that_overlap_as_a_loop_would_have_it():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(20, generator=generator, requires_grad=True)
    parts = torch.rand(20, 4, generator=generator) * (torch.rand(20, 4, generator=generator) < 0.6)
    parts[:, 0] = 1.0
    losses, counts = eq.group_losses(values, parts, 4)
    for group in range(4):
        pairs = zip(parts[:, group].tolist(), values.tolist(), strict=True)
        expected = sum(a * v for a, v in pairs)
        assert losses[group].item() == pytest.approx(expected / float(parts[:, group].sum()))
    torch.testing.assert_close(counts, parts.sum(0))
    losses[2].backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, parts[:, 2] / parts[:, 2].sum())


def test_rows_with_one_group_each_are_numbers():
    values, groups = torch.rand(12), torch.arange(12) % 3
    ours, theirs = (eq.group_losses(values, g, 4) for g in (torch.nn.functional.one_hot(groups, 4).bool(), groups))
    torch.testing.assert_close(ours, theirs)


def test_an_infinite_sample_spoils_only_the_groups_it_is_in():
    losses, _ = eq.group_losses(torch.tensor([1.0, torch.inf]), torch.tensor([[1, 1, 0], [0, 1, 0]]), 3)
    assert losses.tolist() == [1.0, torch.inf, 0.0]


def test_overlapping_groups_over_calls_and_their_adjustment():
    """Counts that are fractions weigh the calls of a step, and `group_dro` takes their sums."""
    parts = torch.tensor([[1.0, 0.5], [0.5, 1.0], [0.0, 1.0], [1.0, 1.0]])
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = eq.group_dro(parts.sum(0).tolist(), adjustment=1.0)
    mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=method)
    for rows in (slice(0, 1), slice(1, 4)):
        values = torch.tensor([1.0, 2.0, 3.0, 4.0]) + 0 * model.weight.sum()
        (mol(*eq.group_losses(values[rows], parts[rows], 2)) / 2).backward()
    optimizer.step()
    whole, _ = eq.group_losses(torch.tensor([1.0, 2.0, 3.0, 4.0]), parts, 2)
    metrics = mol.metrics()
    assert [metrics["loss/0"], metrics["loss/1"]] == pytest.approx(whole.tolist())
    assert method.weighting.ideal == pytest.approx((-(2.5**-0.5), -(3.5**-0.5)))


def test_weights_multiply_gradients_and_leave_losses():
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    losses, counts = eq.group_losses(values, torch.tensor([1, 0, 0]), 2, weights=torch.tensor([3.0, 0.5, 2.0]))
    assert losses.tolist() == [3.0, 1.0]
    assert counts.tolist() == [2.0, 1.0]
    losses.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [3.0, 0.25, 1.0]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[1, 0], [0, 0]], "groups must have a part above 0 for every sample; found none for sample 1"),
        ([[1, 0], [-1, 2]], r"groups must have parts in \[0, 1\]; found -1\.0"),
        ([[1.0, 0.0], [float("inf"), 0.0]], r"groups must have parts in \[0, 1\]; found inf"),
        (
            [[1, 0, 1], [0, 1, 0]],
            r"groups must be one row per sample and one column per group, of shape \(2, 2\); found",
        ),
    ],
)
def test_bad_membership_is_named(groups, message):
    with pytest.raises(ValueError, match=message):
        eq.group_losses(torch.ones(2), torch.tensor(groups), 2)


def test_bad_weights_are_named():
    with pytest.raises(ValueError, match=r"weights must be one number per sample, of shape \(2,\); found \(3,\)"):
        eq.group_losses(torch.ones(2), torch.tensor([0, 1]), 2, weights=torch.ones(3))


@pytest.mark.parametrize("form", ["list", "array", "Series"])
def test_groups_may_come_in_any_form(form):
    values, groups = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 0, 1])
    ids: Any = {"list": groups.tolist(), "array": groups.numpy()}.get(form)
    if ids is None:
        ids = pytest.importorskip("pandas").Series(groups.tolist(), [5, 6, 7], dtype="Int64")
    m: Any = np.int64(2)
    torch.testing.assert_close(eq.group_losses(values, ids, m), eq.group_losses(values, groups, 2))
    assert list(eq.GroupBalancedSampler(ids, m, seed=m)) == list(eq.GroupBalancedSampler(groups, 2, seed=2))


def test_membership_may_come_in_any_form():
    rows, values = [[1.0, 0.25], [0.0, 1.0]], torch.tensor([1.0, 2.0])
    frame = pytest.importorskip("pandas").DataFrame(rows, columns=["a", "b"])
    for parts in (rows, np.array(rows), frame):
        torch.testing.assert_close(
            eq.group_losses(values, parts, 2), eq.group_losses(values, torch.tensor(rows), 2), msg=str(type(parts))
        )


def test_groups_on_another_device_are_named():
    with pytest.raises(ValueError, match="groups must be on the device cpu of values; found meta"):
        eq.group_losses(torch.ones(2), torch.ones(2, dtype=torch.int64, device="meta"), 2)


def test_it_compiles_whole():
    torch._dynamo.reset()
    values, groups = torch.tensor([1.0, 2.0, 4.0], requires_grad=True), torch.tensor([1, 0, 0])
    losses, counts = torch.compile(eq.group_losses, fullgraph=True, backend="eager")(values, groups, 3)
    assert losses.tolist() == [3.0, 1.0, 0.0]
    assert counts.tolist() == [2.0, 1.0, 0.0]


def test_an_absent_group_is_masked_and_keeps_its_dual_in_proportion():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = eq.group_dro([10, 10, 10], step_size=1.0)
    mol = eq.MultiObjective(model, optimizer, [1 / 3] * 3, method=(method.weighting, method.conversion))
    values = model(torch.tensor([[1.0], [2.0]])).square().squeeze(1)
    mol(*eq.group_losses(values, torch.tensor([0, 2]), m=3)).backward()
    optimizer.step()
    gain = torch.stack([values[0], torch.zeros(()), values[1]]).detach().double()
    assert mol.duals is not None
    torch.testing.assert_close(mol.duals.double(), torch.softmax(gain, 0))


def test_the_adjustment_lets_small_groups_weigh_more():
    """Equal losses: λ_g ∝ exp(η C/√n_g)."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = eq.group_dro([100, 4], adjustment=2.0, step_size=1.0)
    mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=(method.weighting, method.conversion))
    values = model(torch.ones(2, 1)).square().squeeze(1)
    mol(*eq.group_losses(values, torch.tensor([0, 1]), m=2)).backward()
    optimizer.step()
    assert mol.duals is not None
    torch.testing.assert_close(mol.duals.double(), torch.softmax(torch.tensor([0.2, 1.0]).double(), 0))


# The sampler ------------------------------------------------------------------------------------
def test_any_turn_has_one_sample_of_each_group():
    order = list(eq.GroupBalancedSampler(SKEWED, samples=99))
    turns = [sorted(SKEWED[i] for i in order[k : k + 3]) for k in range(0, 99, 3)]
    assert turns == [[0, 1, 2]] * 33


def test_the_place_of_a_group_in_its_turn_is_random():
    order = list(eq.GroupBalancedSampler(SKEWED, samples=3000))
    first = Counter(SKEWED[i] for i in order[::3])
    assert all(abs(first[group] / 1000 - 1 / 3) < 0.06 for group in range(3))


def test_a_group_goes_through_all_its_samples_before_one_comes_again():
    order = list(eq.GroupBalancedSampler(SKEWED, samples=300))
    small = [i for i in order if SKEWED[i] == 1]
    assert [sorted(small[k : k + 7]) for k in range(0, 98, 7)] == [list(range(90, 97))] * 14
    assert small[:7] != small[7:14]
    large = [i for i in order if SKEWED[i] == 0]
    assert sorted(large[:90]) == list(range(90))


def test_seed_and_epoch_decide_the_order_and_nothing_else():
    def order(seed: int, epoch: int) -> list[int]:
        sampler = eq.GroupBalancedSampler(SKEWED, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    torch.manual_seed(1)
    first = order(0, 0)
    torch.manual_seed(2)
    assert order(0, 0) == first
    different = [order(seed, epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(each) for each in different}) == 16


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(eq.GroupBalancedSampler(SKEWED))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_resumed_goes_on_with_the_next_batch(workers):
    data = TensorDataset(torch.arange(100), torch.tensor(SKEWED))
    sampler = eq.GroupBalancedSampler(SKEWED, seed=3)
    sampler.set_epoch(2)
    whole = [x.tolist() for x, _ in DataLoader(data, batch_size=8, sampler=sampler)]
    resumed = eq.GroupBalancedSampler(SKEWED, seed=3)
    resumed.set_epoch(2, start=5 * 8)
    loader = DataLoader(data, batch_size=8, sampler=resumed, num_workers=workers)
    assert len(loader) == len(whole) - 5
    assert [x.tolist() for x, _ in loader] == whole[5:]
    resumed.set_epoch(3)
    assert len(resumed) == 100


@pytest.mark.parametrize(("samples", "each"), [(100, 34), (99, 33), (1, 1)])
def test_ranks_share_one_order_in_equal_parts(samples, each):
    parts = [list(eq.GroupBalancedSampler(SKEWED, samples=samples, rank=r, world_size=3)) for r in range(3)]
    assert [len(part) for part in parts] == [each] * 3
    alone = list(eq.GroupBalancedSampler(SKEWED, samples=3 * each))
    assert [parts[k % 3][k // 3] for k in range(3 * each)] == alone


def test_a_process_group_gives_rank_and_world_size(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _group=None: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    assert list(eq.GroupBalancedSampler(SKEWED)) == list(eq.GroupBalancedSampler(SKEWED, rank=2, world_size=4))
    assert len(eq.GroupBalancedSampler(SKEWED)) == 25


def test_ranks_have_as_much_of_each_group_in_expectation():
    part = list(eq.GroupBalancedSampler(SKEWED, samples=6000, rank=1, world_size=2))
    shares = Counter(SKEWED[i] for i in part)
    assert all(abs(shares[group] / 3000 - 1 / 3) < 0.03 for group in range(3))


@pytest.mark.parametrize(
    ("groups", "settings", "message"),
    [
        ([0, 2, 2], {}, r"groups must hold a sample of each of the 3 groups; found none of group 1"),
        ([0, 1], {"m": 4}, r"groups must hold a sample of each of the 4 groups; found none of groups 2, 3"),
        ([], {}, "groups must hold at least one sample; found none"),
        ([0, 1, 5], {"m": 3}, r"groups must lie in 0\.\.2; found 5"),
        ([0, -1], {}, r"groups must lie in 0\.\.0; found -1"),
        ([[0, 1]], {}, r"of shape \(n,\), or taken by DomainSampler where they overlap; found \(1, 2\)"),
        ([0.0, 1.0], {}, "groups must be whole numbers; found torch.float64"),
        (["a", "b", "a"], {}, r"groups must be whole numbers, such as numpy\.unique\(ids, .*\)\[1\]; found 'a'"),
        ([0, None], {}, r"groups must be whole numbers, such as .*; found None"),
        ([[0], [0, 1]], {}, "groups must have rows of one length; found several lengths"),
        ([0, 1], {"m": 2.0}, "m must be a whole number of at least 1; found 2.0"),
        ([0, 1], {"samples": True}, "samples must be a whole number of at least 1; found True"),
        ([0, 1], {"samples": 0}, "samples must be a whole number of at least 1; found 0"),
        ([0, 1], {"seed": -1}, "seed must be a non-negative whole number; found -1"),
        ([0, 1], {"rank": 2, "world_size": 2}, r"rank must lie in 0\.\.1; found 2"),
        ([0, 1], {"world_size": 0}, "world_size must be at least 1; found 0"),
    ],
)
def test_a_bad_sampler_is_named(groups, settings, message):
    with pytest.raises(ValueError, match=message):
        eq.GroupBalancedSampler(groups, **settings)


def test_an_epoch_begins_within_itself():
    sampler = eq.GroupBalancedSampler([0, 1, 1])
    with pytest.raises(ValueError, match=r"start must lie in 0\.\.3; found 4"):
        sampler.set_epoch(0, start=4)
    with pytest.raises(ValueError, match="epoch must be non-negative; found -1"):
        sampler.set_epoch(-1)
    sampler.set_epoch(0, start=3)
    assert list(sampler) == []


@pytest.mark.filterwarnings("ignore:.*had no sample")
def test_a_group_that_is_in_no_batch_does_not_stop_the_training():
    torch.manual_seed(0)
    x, groups = torch.randn(512, 4), torch.randint(3, (512,))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    mol = eq.MultiObjective(model, optimizer, dict.fromkeys("abcd", 0.25))
    for step in range(600):
        some = torch.randint(512, (64,))
        values = (model(x[some]) - x[some, :1]).square().squeeze(1)
        mol(*eq.group_losses(values, groups[some], m=4)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20:
            assert mol.metrics()["archive"] > 0
    model.load_state_dict(mol.solution())
    assert (model(x) - x[:, :1]).square().mean() < 0.02


def test_what_is_no_tensor_and_no_number_is_named():
    with pytest.raises(
        ValueError, match="values must be a tensor, the loss of every sample with its graph; found a list"
    ):
        eq.group_losses([1.0, 2.0], [0, 1], 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="m must be a whole number of at least 1; found '2'"):
        eq.group_losses(torch.ones(2), [0, 1], "2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one per group in the order of the preference; found \{'a': 3, 'b': 2\}"):
        eq.group_dro({"a": 3, "b": 2})  # type: ignore[arg-type]
