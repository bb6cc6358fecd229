"""Compiled models and losses."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import equipoise as eq


@pytest.mark.parametrize("weighting", [eq.OMD(), eq.SmoothTchebycheff(0.1)], ids=["OMD", "STCH"])
def test_model_and_loss_compile_whole_and_once(weighting, toy, preference):
    torch._dynamo.reset()
    counter = CompileCounter()
    ours, plain = toy(), toy()

    @torch.compile(fullgraph=True, backend=counter)
    def losses(x: Tensor, y: Tensor) -> Tensor:
        f: Tensor = (ours.model(x) - y).square().mean(0)
        return f

    mol = eq.MultiObjective(ours.model, ours.optimizer, preference, method=(weighting, eq.Adaptive(capacity=3)))
    for step in range(5):
        mol(losses(*ours.batch(step))).backward()
        ours.optimizer.step()
        ours.optimizer.zero_grad()
    right = eq.MultiObjective(plain.model, plain.optimizer, preference, method=(weighting, eq.Adaptive(capacity=3)))
    plain.run(right, 5)
    assert counter.frame_count == 1
    torch.testing.assert_close(ours.params(), plain.params(), rtol=0, atol=0)


def test_a_compiled_model_may_be_given(toy, preference):
    torch._dynamo.reset()
    run = toy()
    compiled = torch.compile(run.model, fullgraph=True, backend="eager")
    assert isinstance(compiled, nn.Module)
    mol = eq.MultiObjective(compiled, run.optimizer, preference, method=(eq.OMD(), eq.Average()))
    for step in range(3):
        x, y = run.batch(step)
        mol((compiled(x) - y).square().mean(0)).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    compiled.load_state_dict(mol.solution())
    assert torch.equal(run.model[0].weight, mol.solution()["_orig_mod.0.weight"])
