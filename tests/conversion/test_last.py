"""`Last`: the newest finite iterate."""

import torch

import equipoise as eq


def test_the_newest_iterate_replaces_the_one_before():
    last = eq.Last()
    state = last.init({"x": torch.zeros(2)}, torch.ones(2))
    for value in (1.0, 2.0):
        state = last.update({"x": torch.full((2,), value)}, torch.ones(2), state)
        assert last.output(state)["x"].tolist() == [value, value]


def test_each_problem_keeps_its_last_sound_iterate():
    last = eq.Last()
    state = last.init({"x": torch.zeros(2, 1)}, torch.ones(2, 2))
    losses = torch.tensor([[1.0, torch.nan], [1.0, 1.0]])
    state = last.update({"x": torch.tensor([[7.0], [8.0]])}, losses, state)
    assert last.output(state)["x"].tolist() == [[0.0], [8.0]]


def test_an_absent_objective_does_not_hold_an_iterate_back():
    last = eq.Last()
    state = last.init({"x": torch.zeros(1)}, torch.ones(2))
    mask = torch.tensor([True, False])
    state = last.update({"x": torch.ones(1)}, torch.tensor([1.0, torch.nan]), state, mask=mask)
    assert last.output(state)["x"].tolist() == [1.0]
