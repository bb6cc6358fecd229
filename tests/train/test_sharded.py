"""Sharded parameters with one rank, in this process; `test_distributed.py` has two."""

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.conversion.own import LastEpoch
from tests.torch_versions import shards_on_cpu
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import equipoise as eq
from equipoise.train import checkpoint

ADAPTIVE = eq.Adaptive(power=1, capacity=3)
METHOD = (eq.OMD(), ADAPTIVE)
CONVERSIONS = [eq.Last(), eq.Average(power=2), ADAPTIVE, eq.Suffix(2, 3), LastEpoch()]

pytestmark = shards_on_cpu


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


class Run:
    def __init__(self, shards: bool, method: Any = METHOD, **settings: Any) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(6, 8, 4)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
        if shards:
            fully_shard(self.model[0])
            fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.mol = eq.MultiObjective(self.model, self.optimizer, [0.3, 0.7], method=method, **settings)

    def run(self, start: int = 0, stop: int = 6) -> "Run":
        for batch in self.x[start:stop]:
            self.mol((self.model(batch) - batch[:, :2]).square().mean(0)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(x, right[name]) for name, x in left.items())


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=str)
@pytest.mark.parametrize("store", ["device", "host", "folder"])
def test_a_sharded_run_is_the_plain_one(conversion, store: str, tmp_path):
    where, method = tmp_path if store == "folder" else store, (eq.OMD(), conversion)
    ours, theirs = Run(True, method, store=where).run(), Run(False, method).run()
    assert same(ours.mol.solution(), theirs.mol.solution())
    shards = ours.mol.solution(gather=False)
    assert isinstance(shards["0.weight"], DTensor)
    assert not isinstance(shards["1.running_mean"], DTensor)
    ours.model.load_state_dict(shards)
    theirs.model.load_state_dict(theirs.mol.solution())
    ours.model.eval(), theirs.model.eval()
    with torch.no_grad():
        assert torch.equal(ours.model(ours.x[0]), theirs.model(theirs.x[0]))


def test_batch_norm_is_recalibrated_in_shards():
    ours, theirs = Run(True).run(), Run(False).run()
    for run in (ours, theirs):
        run.mol.update_bn(list(run.x))
    assert same(ours.mol.solution(), theirs.mol.solution())
    assert same(ours.run().mol.solution(), theirs.run().mol.solution())  # the model was left as it was


def test_a_checkpoint_has_shards_and_survives_a_file(tmp_path):
    first, whole = Run(True, store=tmp_path / "one").run(0, 3), Run(True).run()
    state = first.mol.state_dict()
    copies = [name for name, x in state["tensors"].items() if isinstance(x, DTensor)]
    assert len(copies) == 3 * len(list(first.model.parameters()))
    file = io.BytesIO()
    torch.save([state, first.model.state_dict()], file)
    file.seek(0)
    saved, weights = torch.load(file, weights_only=True)
    second = Run(True).run(2, 4)
    second.mol.load_state_dict(saved)
    second.model.load_state_dict(weights)
    assert same(second.run(3).mol.solution(), whole.mol.solution())


def test_one_rank_of_shards_is_a_plain_run():
    """And the other way round."""
    shards, plain = Run(True).run(), Run(False)
    plain.mol.load_state_dict(shards.mol.state_dict())
    again = Run(True)
    again.mol.load_state_dict(plain.mol.state_dict())
    for name, _ in plain.model.named_parameters():
        answer = shards.mol.solution()[name]
        assert torch.equal(plain.mol.solution()[name], answer)
        assert torch.equal(again.mol.solution()[name], answer)


def test_a_tensor_of_another_shape_is_refused():
    run = Run(True)
    state = run.mol.state_dict()
    wrong = {**state, "tensors": {**state["tensors"], "conversion.slots.0.0.bias": torch.zeros(6)}}
    message = "conversion.slots.0.0.bias must have shape (5,); found (6,)"
    with pytest.raises(eq.StateMismatchError, match=re.escape(message)):
        run.mol.load_state_dict(wrong)


def test_a_step_that_moves_nothing_is_no_step():
    """As torch.distributed.checkpoint takes one to make an optimizer's state."""
    run = Run(True).run(0, 2)
    run.optimizer.param_groups[0]["lr"] = 0.0
    for p in run.model.parameters():
        p.grad = torch.zeros_like(p)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.optimizer.param_groups[0]["lr"] = 0.1
    assert run.mol.step == 2
    assert same(run.run(2).mol.solution(), Run(True).run().mol.solution())


def test_parts_of_a_state_know_their_parameters():
    model = nn.ParameterDict({"a": torch.ones(1), "b": torch.ones(2)})
    mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(eq.OMD(), eq.Last()))
    found = {key: p for key, p in checkpoint._owners(mol._run).items() if key in mol.state_dict()["tensors"]}
    assert list(found) == ["conversion.slots.0.a", "conversion.slots.0.b"]
    assert all(p is mine for p, mine in zip(found.values(), (model["a"], model["b"]), strict=True))


def test_what_needs_whole_parameters_is_refused():
    with pytest.raises(ValueError, match=r"weighting must need losses alone where parameters are sharded.*found MGDA"):
        Run(True, (eq.MGDA(), ADAPTIVE))
    with pytest.raises(ValueError, match='on_nonfinite must be "raise" where parameters are sharded'):
        Run(True, on_nonfinite="skip")


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")  # with one rank
def test_flattened_parameters_are_refused():
    model = FullyShardedDataParallel(nn.Linear(4, 2), device_id=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"model must be sharded by fully_shard \(FSDP2\); found FullyShardedData"):
        eq.MultiObjective(model, None, [0.5, 0.5], method=(eq.OMD(), eq.Last()))
