"""Training runs that one process or several can make, each with its part of the same global batches.

    python two_processes.py RANK RANKS FOLDER

runs all of them as one of several processes and leaves what it found in FOLDER/RANK.pt.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq

sys.path.append(str(Path(__file__).parents[2]))

from tests.conversion.own import LastEpoch

M, STEPS = 3, 10
# Of sixteen samples, eleven are on the first of two ranks.
PARTS = [(0, 11), (11, 16)]


def group_means(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    chosen = nn.functional.one_hot(groups, M).to(values)
    counts = chosen.sum(0)
    return (values @ chosen) / counts.clamp_min(1.0), counts


def draw_groups() -> Tensor:
    """The group of every sample of every batch."""
    groups = torch.randint(M, (STEPS, 16), generator=torch.Generator().manual_seed(2))
    groups[2] = 0  # two groups are absent
    groups[3, :11] = 1  # the second rank alone has the others
    return groups


def build(wide: bool) -> nn.Sequential:
    """The wide one has rows that two ranks cannot divide evenly, and of the last layer one has nothing."""
    if not wide:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    return nn.Sequential(nn.Linear(4, 33), nn.Tanh(), nn.Linear(33, 33), nn.Tanh(), nn.Linear(33, 1))


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


class Setting:
    """A model, its part of the data, and the shell."""

    def __init__(self, weighting: Any, ranks: int, rank: int, *, shards: bool = False, **settings: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(STEPS, 16, 4, generator=generator, dtype=torch.float64)
        self.groups = draw_groups()
        torch.manual_seed(1)
        model = build(shards).double()
        if shards and ranks > 1:
            for layer in (model[0], model[2], model):  # the last layer is the root's
                fully_shard(layer)
            self.model: Any = model
        else:
            self.model = DistributedDataParallel(model) if ranks > 1 else model
        self.plain = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
        self.ranks, self.rank = ranks, rank
        method = (weighting, settings.pop("conversion", eq.Adaptive(power=1, capacity=3)))
        self.mol = eq.MultiObjective(model, self.optimizer, w, method=method, **settings)
        self.steps: list[Tensor] = []

    def losses(self, step: int, part: int = 0, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Of the part-th micro-batch of this rank's samples; those of all ranks make up the single process's."""
        wanted = PARTS if self.ranks == 1 else [PARTS[self.rank]]
        rows = torch.cat([torch.arange(a, b).chunk(parts)[part] for a, b in wanted])
        x, groups = self.x[step, rows], self.groups[step, rows]
        target = (groups - 1).double().unsqueeze(-1)
        return group_means((self.model(x) - target).square().squeeze(-1), groups)

    def finish_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        duals = self.mol.coefficients if self.mol.duals is None else self.mol.duals
        self.steps.append(torch.stack([duals, self.mol.coefficients.to(duals)]))

    def run(self, start: int = 0, stop: int = STEPS) -> None:
        for step in range(start, stop):
            self.mol(*self.losses(step)).backward()
            self.finish_step()

    def found(self) -> dict[str, Any]:
        return {
            "steps": torch.stack(self.steps),  # λ and coefficients after each
            "tensors": {name: whole(x) for name, x in self.mol.state_dict()["tensors"].items()},
            "params": {name: whole(p.detach()).clone() for name, p in self.plain.named_parameters()},
            "solution": self.mol.solution(),
        }


def plain(weighting: Any, **settings: Any) -> Callable[[int, int, Path], dict[str, Any]]:
    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        setting = Setting(weighting, ranks, rank, **settings)
        setting.run()
        return setting.found()

    return run


def evenly(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Without counts every rank has as many samples."""
    setting = Setting(eq.OMD(), ranks, rank)
    for step in range(STEPS):
        x = setting.x[step].chunk(ranks)[rank if ranks > 1 else 0]
        out = setting.model(x).squeeze(-1)
        setting.mol(torch.stack([(out - k).square().mean() for k in range(M)])).backward()
        setting.finish_step()
    return setting.found()


def accumulating(weighting: Any, **settings: Any) -> Callable[[int, int, Path], dict[str, Any]]:
    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        setting = Setting(weighting, ranks, rank, **settings)
        for step in range(STEPS):
            for part in range(2):
                model = setting.model
                local = part == 0 and isinstance(model, DistributedDataParallel)
                with model.no_sync() if local else nullcontext():
                    (setting.mol(*setting.losses(step, part, 2)) / 2).backward()
            setting.finish_step()
        return setting.found()

    return run


def held_out(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Iterates compared by losses of which every rank has measured a part."""
    setting = Setting(eq.OMD(), ranks, rank, every=None)
    for step in range(STEPS):
        setting.mol(*setting.losses(step)).backward()
        with torch.no_grad():
            setting.mol.record(*setting.losses(0))
        setting.finish_step()
    return setting.found()


def steered(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """λ follows losses of which every rank has measured a part; of the first ones two are absent."""
    setting = Setting(eq.OMD(0.5), ranks, rank, units="start", ideal=-0.5)
    for step in range(STEPS):
        if step % 3 == 0:
            with torch.no_grad():
                setting.mol.steer(*setting.losses(2 if step == 0 else step))
        setting.mol(*setting.losses(step)).backward()
        setting.finish_step()
    return setting.found()


def interrupted(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """The first rank saves, all load, into runs that began otherwise."""
    setting = Setting(eq.OMD(), ranks, rank)
    setting.run(0, 5)
    path = folder / f"checkpoint-{ranks}.pt"
    if rank == 0:
        parts: dict[str, Any] = {"mol": setting.mol, "model": setting.plain, "optimizer": setting.optimizer}
        eq.train.save({name: part.state_dict() for name, part in parts.items()}, path)
    if ranks > 1:
        dist.barrier()
    resumed = Setting(eq.OMD(), ranks, rank)
    resumed.run(7, 8)
    resumed.steps = setting.steps
    saved = torch.load(path, weights_only=True)
    resumed.mol.load_state_dict(saved["mol"])
    resumed.plain.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.run(5)
    return resumed.found()


def spoiled(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """A loss that is not finite on the last rank is one on all."""
    setting = Setting(eq.OMD(), ranks, rank)
    losses, counts = setting.losses(0)
    bad = torch.tensor([1.0, torch.nan, 1.0]) if rank == ranks - 1 else torch.ones(M)
    try:
        setting.mol(losses * bad, counts)
    except eq.NonFiniteLossError as error:
        return {"message": str(error)}
    return {"message": "none"}


def sharded(**settings: Any) -> Callable[[int, int, Path], dict[str, Any]]:
    """Between steps the answer is lent to the model, which FSDP leaves unsharded after a forward pass."""

    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        setting = Setting(eq.OMD(), ranks, rank, shards=True, **settings)
        outputs = []
        for step in range(STEPS):
            setting.mol(*setting.losses(step)).backward()
            nn.utils.clip_grad_norm_(setting.plain.parameters(), 0.1)
            setting.finish_step()
            with torch.no_grad():
                before = setting.model(setting.x[0])
                with setting.mol.solution_weights():
                    outputs.append(setting.model(setting.x[0]))
                assert torch.equal(setting.model(setting.x[0]), before)
        return {**setting.found(), "outputs": torch.stack(outputs), **sizes(setting)}

    return run


def sizes(setting: Setting) -> dict[str, Any]:
    """Bytes of the copies and of the parameters on this rank."""
    saved = setting.mol.state_dict()["tensors"]
    copies = [x for name, x in saved.items() if name.startswith("conversion.slots.")]
    held = [[getattr(x, "_local_tensor", x) for x in xs] for xs in (copies, list(setting.plain.parameters()))]
    copied, trained = (sum(x.numel() * x.element_size() for x in xs) for xs in held)
    return {"bytes": {"copies": copied, "parameters": trained}}


def sharded_held_out(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Recorded after a forward pass that leaves full parameters in the model."""
    setting = Setting(eq.SmoothTchebycheff(0.1), ranks, rank, shards=True, every=None, conversion=eq.Average(power=1))
    for step in range(STEPS):
        for part in range(2):
            (setting.mol(*setting.losses(step, part, 2)) / 2).backward()
        with torch.no_grad():
            setting.mol.record(*setting.losses(0))
        setting.finish_step()
    return setting.found()


def for_dcp(setting: Setting) -> dict[str, Any]:
    model, optimizer = get_state_dict(setting.plain, setting.optimizer)
    return {"mol": setting.mol.state_dict(), "model": model, "optimizer": optimizer}


def resharded(folder: Path) -> dict[str, Any]:
    """What DCP saved for two ranks, gone on with by one that has no shards."""
    setting = Setting(eq.OMD(), 1, 0, shards=True)
    state = for_dcp(setting)
    load(state, checkpoint_id=folder / "dcp")
    setting.mol.load_state_dict(state["mol"])
    set_state_dict(
        setting.plain, setting.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    assert setting.mol.step == 5
    setting.run(5)
    return setting.found()


def sharded_interrupted(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """Every rank saves its shards and loads them; DCP saves them for any number of ranks."""
    setting = Setting(eq.OMD(), ranks, rank, shards=True)
    setting.run(0, 5)
    parts: dict[str, Any] = {"mol": setting.mol, "model": setting.plain, "optimizer": setting.optimizer}
    state = {name: part.state_dict() for name, part in parts.items()}
    path = folder / f"sharded-{rank}-of-{ranks}.pt"
    eq.train.save(state, path)
    if ranks > 1:
        save(for_dcp(setting), checkpoint_id=folder / "dcp")
    resumed = Setting(eq.OMD(), ranks, rank, shards=True, store="host")
    resumed.run(7, 8)
    resumed.steps = setting.steps
    saved = torch.load(path, weights_only=True)
    resumed.mol.load_state_dict(saved["mol"])
    resumed.plain.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.run(5)
    return resumed.found()


def sharded_otherwise(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    """What one process saved, loaded by shards; the answer as shards, loaded by the model; DCP without resharding."""
    first, second, third = (Setting(eq.OMD(), ranks, rank, shards=True) for _ in range(3))
    first.run()
    state = first.mol.state_dict()
    full = {**state, "tensors": {name: whole(x).clone() for name, x in state["tensors"].items()}}
    second.mol.load_state_dict(full)
    second.steps = first.steps
    first.plain.load_state_dict(first.mol.solution(gather=False))
    answer = {name: whole(p.detach()).clone() for name, p in first.plain.named_parameters()}
    loaded = {"mol": third.mol.state_dict()}
    dcp_folder = folder / f"dcp-{ranks}"
    save({"mol": state}, checkpoint_id=dcp_folder)
    load(loaded, checkpoint_id=dcp_folder)
    third.mol.load_state_dict(loaded["mol"])
    return {**second.found(), "params": answer, "third": third.mol.solution()}


def sharded_refused(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """What needs whole parameters."""
    messages = []
    for given in ({"weighting": eq.MGDA()}, {"weighting": eq.OMD(), "on_nonfinite": "skip"}):
        try:
            Setting(given.pop("weighting"), ranks, rank, shards=True, **given)
        except ValueError as error:
            messages.append(str(error))
    return {"messages": messages}


RUNS: dict[str, Callable[[int, int, Path], dict[str, Any]]] = {
    "OMD": plain(eq.OMD()),
    "entropic": plain(eq.OMD(0.5, eq.Entropic(), order="alternating")),
    "STCH": plain(eq.SmoothTchebycheff(0.1)),
    "MGDA": plain(eq.MGDA()),
    "ExcessMTL": plain(eq.ExcessRisk()),
    "MoCo tracking": plain(eq.MoCo(0.5, tracking=0.5)),
    "units": plain(eq.OMD(), units="start", ideal=(-1.0, 0.0, -0.5)),
    "units of MGDA": plain(eq.MGDA(), units="start"),
    "evenly": evenly,
    "accumulating": accumulating(eq.OMD()),
    "accumulating MGDA": accumulating(eq.MGDA()),
    "accumulating in units": accumulating(eq.OMD(), units="start"),
    "held out": held_out,
    "steered": steered,
    "interrupted": interrupted,
    "spoiled": spoiled,
    "sharded": sharded(),
    "sharded in host memory": sharded(store="host"),
    "sharded, a user's own conversion": sharded(conversion=LastEpoch(4)),
    "sharded, held out": sharded_held_out,
    "sharded, interrupted": sharded_interrupted,
    "sharded, loaded otherwise": sharded_otherwise,
    "sharded, refused": sharded_refused,
}


def everything(ranks: int, rank: int, folder: Path) -> dict[str, Any]:
    return {name: run(ranks, rank, folder) for name, run in RUNS.items()}


def tensors(found: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a result by its name."""
    for name, value in found.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, dict):
            yield from tensors(value, f"{prefix}{name}/")


if __name__ == "__main__":
    mine, world, where = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{where}/meeting", rank=mine, world_size=world)
    torch.save(everything(world, mine, where), where / f"{mine}.pt")
    dist.barrier()
    os._exit(0)  # a gloo thread that frees a tensor while the interpreter ends aborts the process
