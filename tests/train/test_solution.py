"""The answer in the model: loaded, swapped in, with its own BatchNorm statistics."""

import io

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

AVERAGE = eq.Average()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.norm(self.body(x))))
        return y

    @property
    def mean(self) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x))).mean(-1, keepdim=True)
        return y


def train(model: nn.Module, steps: int = 4, **settings: object) -> tuple[eq.MultiObjective, torch.Tensor]:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=(eq.OMD(), AVERAGE), **settings)  # type: ignore[arg-type]
    for _ in range(steps):
        out = model(x)
        mol(torch.stack([(out - 1).square().mean(), (out + 1).square().mean()])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return mol, x


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(x, right[name]) for name, x in left.items())


def test_before_the_first_step_the_answer_is_where_it_began(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), eq.Adaptive(capacity=2)))
    assert same(mol.solution(), run.params())


def test_the_solution_is_a_full_state_that_loads_strictly():
    model = Normed()
    mol, _ = train(model)
    solution = mol.solution()
    assert solution.keys() == model.state_dict().keys()
    assert torch.equal(solution["norm.running_mean"], model.mean)
    for tensor in solution.values():
        tensor.zero_()
    model.load_state_dict(mol.solution())
    assert not torch.equal(mol.solution()["body.weight"], torch.zeros(6, 4))


def test_weights_are_lent_and_given_back():
    model = Normed()
    mol, x = train(model)
    before, solution = state(model), mol.solution()
    with mol.solution_weights():
        assert torch.equal(model.body.weight, solution["body.weight"])
        model(x)  # in training mode: the running statistics move
        assert not torch.equal(model.mean, before["norm.running_mean"])
    assert same(state(model), before)
    with pytest.raises(RuntimeError, match="inside"), mol.solution_weights():
        raise RuntimeError("inside")
    assert same(state(model), before)
    assert model.body.weight.requires_grad


def test_the_state_of_the_model_taken_inside_the_block_changes_with_it():
    model = Normed()
    mol, _ = train(model)
    with mol.solution_weights():
        inside = model.state_dict()
        copied = {name: x.clone() for name, x in inside.items()}
    assert same(copied, {name: x.to(copied[name].dtype) for name, x in mol.solution().items()})
    assert same(inside, state(model))
    assert not torch.equal(inside["body.weight"], copied["body.weight"])


def test_batch_norm_is_recalibrated_for_the_answer():
    """By hand: the mean of the layer's inputs over the data, at the averaged weights."""
    model = Normed()
    mol, x = train(model)
    before = state(model)
    loader = [(x[:16],), (x[16:],)]
    solution = mol.solution()
    inputs = x @ solution["body.weight"].T + solution["body.bias"]
    mol.update_bn(loader)
    assert same(state(model), before)
    torch.testing.assert_close(mol.solution()["norm.running_mean"], inputs.mean(0))
    variance = (inputs[:16].var(0) + inputs[16:].var(0)) / 2
    torch.testing.assert_close(mol.solution()["norm.running_var"], variance)
    with mol.solution_weights():
        torch.testing.assert_close(model.mean, inputs.mean(0))
    model.load_state_dict(solution)
    mol.update_bn(loader)
    torch.testing.assert_close(model.mean, inputs.mean(0))
    assert model.training


@pytest.mark.parametrize("loaded", [False, True])
def test_statistics_stay_where_there_are_no_batches_for_the_model(loaded):
    model = Normed()
    mol, x = train(model)
    if loaded:
        model.load_state_dict(mol.solution())
    before, answer = state(model), mol.solution()
    used = iter([x])
    next(used)
    with pytest.raises(ValueError, match=r"at least one batch; found none \(an iterator that is used up\?\)"):
        mol.update_bn(used)
    with pytest.raises(ValueError, match=r'\(batch\["x"\] for batch in loader\); found a dict'):
        mol.update_bn([(x,), {"x": x}])  # the first one was right
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        mol.update_bn([x, x[:, :1]])
    assert same(state(model), before)
    assert same(mol.solution(), answer)
    assert model.norm.momentum == nn.BatchNorm1d(1).momentum
    assert model.training


def test_recalibrated_statistics_are_those_of_one_answer():
    model = Normed()
    mol, x = train(model)
    mol.update_bn([x])
    optimizer = mol._run.attached
    assert optimizer is not None
    out = model(x)
    mol(torch.stack([(out - 1).square().mean(), (out + 1).square().mean()])).backward()
    optimizer.optimizer.step()
    assert torch.equal(mol.solution()["norm.running_mean"], model.mean)


def test_recalibrated_statistics_survive_a_checkpoint():
    model = Normed()
    mol, x = train(model)
    mol.update_bn([x])
    file = io.BytesIO()
    torch.save((mol.state_dict(), model.state_dict()), file)
    file.seek(0)
    other = Normed()
    again, _ = train(other, steps=0)
    saved, weights = torch.load(file, weights_only=True)
    again.load_state_dict(saved)
    other.load_state_dict(weights)
    assert same(again.solution(), mol.solution())
    assert not torch.equal(again.solution()["norm.running_mean"], other.mean)
    with again.solution_weights():
        assert torch.equal(other.mean, mol.solution()["norm.running_mean"])
    plain, _ = train(Normed(), steps=0)
    again.load_state_dict(plain.state_dict())  # a run without such statistics
    assert torch.equal(again.solution()["norm.running_mean"], other.mean)


@pytest.mark.parametrize("check", ["now", "deferred"])
def test_complex_parameters_are_averaged(check):
    model = nn.Module()
    model.z = nn.Parameter(torch.tensor([1 + 2j, -1j]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mol = eq.MultiObjective(model, optimizer, [0.5, 0.5], method=(eq.OMD(), AVERAGE), check=check)
    seen = []
    for _ in range(3):
        seen.append(model.z.detach().clone())
        mol(torch.stack([(model.z - 1).abs().square().sum(), (model.z - 1j).abs().square().sum()])).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(seen[0], seen[2])
    solution = mol.solution()
    assert solution["z"].dtype == torch.complex64
    torch.testing.assert_close(solution["z"], torch.stack(seen).mean(0))
    model.load_state_dict(solution)


def test_tied_weights_stay_tied():
    model = Tied()
    mol, _ = train(model)
    solution = mol.solution()
    assert torch.equal(solution["first.weight"], solution["second.weight"])
    assert not torch.equal(solution["first.weight"], model.first.weight)
    model.load_state_dict(solution)
    assert model.second.weight is model.first.weight
    assert torch.equal(model.first.weight, solution["first.weight"])


def test_frozen_parameters_are_not_recorded():
    model = Normed()
    model.body.requires_grad_(False)
    mol, _ = train(model)
    assert "conversion.slots.0.body.weight" not in mol.state_dict()["tensors"]
    assert mol.solution().keys() == model.state_dict().keys()


def test_parameters_choose_what_is_recorded():
    model = Normed()
    mol, _ = train(model, parameters=["head.weight", "head.bias"])
    slots = [n for n in mol.state_dict()["tensors"] if n.startswith("conversion.slots.")]
    assert {name.split(".", 3)[3] for name in slots} == {"head.weight", "head.bias"}
    solution = mol.solution()
    assert torch.equal(solution["body.weight"], model.body.weight)
    assert not torch.equal(solution["head.weight"], model.head.weight)


def test_a_parameter_that_disappears_is_noticed():
    model = Normed()
    mol, _ = train(model, every=None)
    model.head = nn.Linear(6, 1, bias=False)
    with pytest.raises(ValueError, match=r"recorded parameters must stay in the model; found \['head.bias'\] gone"):
        mol.record(torch.ones(2))


def test_a_parameter_that_appears_is_noticed():
    model = Normed()
    mol, _ = train(model, every=None)
    model.extra = nn.Linear(1, 1, bias=False)
    rule = r"parameters that require grad must be those there were at the start.*; found \['extra.weight'\] new"
    with pytest.raises(ValueError, match=rule):
        mol.record(torch.ones(2))
    model.extra.requires_grad_(False)
    mol.record(torch.ones(2))


def test_a_parameter_of_another_shape_is_noticed():
    model = Normed()
    mol, _ = train(model, every=None)
    model.head = nn.Linear(6, 2)
    with pytest.raises(
        ValueError, match=r"params\['head.weight'\] must have the shape \(1, 6\) it had; found \(2, 6\)"
    ):
        mol.record(torch.ones(2))


def test_parameters_named_by_hand_may_be_joined_by_others():
    model = Normed()
    mol, _ = train(model, parameters=["head.weight"])
    model.extra = nn.Linear(1, 1)
    assert "extra.weight" in mol.solution()


def test_training_inside_the_block_is_refused(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, run.optimizer, preference, method=(eq.OMD(), AVERAGE))
    run.run(mol, 5)
    rule = r"training must wait until the block of mol.solution_weights\(\) ends, as its end restores the weights"
    with mol.solution_weights():
        with mol.solution_weights():
            pass
        with pytest.raises(ValueError, match=f"^{rule}; found a call of mol inside the block"):
            mol(run.losses(5))
    mol(run.losses(5)).backward()
    before = run.params()
    with (
        mol.solution_weights(),
        pytest.raises(ValueError, match=r"found optimizer.step\(\) inside the block"),
    ):
        run.optimizer.step()
    torch.testing.assert_close(run.params(), before, rtol=0, atol=0)
    run.optimizer.step()  # after the block it is an ordinary step
    assert mol.step == 6


def test_without_an_optimizer_too(toy, preference):
    run = toy()
    mol = eq.MultiObjective(run.model, None, preference)
    with mol.solution_weights(), pytest.raises(ValueError, match="found a call of mol inside the block"):
        mol(run.losses(0))
    assert mol.step == 0
