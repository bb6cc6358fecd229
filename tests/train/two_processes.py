"""Training runs that one process or several can make, each with its part of the same global batches.

    python two_processes.py RANK RANKS FOLDER

runs all of them as one of several processes and leaves what it found in FOLDER/RANK.pt.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq

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


class Setting:
    """A model, its part of the data, and the shell."""

    def __init__(self, weighting: Any, ranks: int, rank: int, **settings: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(STEPS, 16, 4, generator=generator, dtype=torch.float64)
        self.groups = draw_groups()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        self.model: Any = DistributedDataParallel(model) if ranks > 1 else model
        self.plain = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
        self.ranks, self.rank = ranks, rank
        given = {"conversion": eq.Adaptive(power=1, capacity=3), "optimizer": self.optimizer}
        self.mol = eq.MultiObjective(model, weighting, w, **{**given, **settings})
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
            "tensors": self.mol.state_dict()["tensors"],
            "params": {name: p.detach().clone() for name, p in self.plain.named_parameters()},
            "solution": self.mol.solution(),
        }


def plain(weighting: Any) -> Callable[[int, int, Path], dict[str, Any]]:
    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        setting = Setting(weighting, ranks, rank)
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


def accumulating(weighting: Any) -> Callable[[int, int, Path], dict[str, Any]]:
    def run(ranks: int, rank: int, folder: Path) -> dict[str, Any]:  # noqa: ARG001
        setting = Setting(weighting, ranks, rank)
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


RUNS: dict[str, Callable[[int, int, Path], dict[str, Any]]] = {
    "OMD": plain(eq.OMD()),
    "entropic": plain(eq.OMD(0.5, eq.Entropic(), order="alternating")),
    "STCH": plain(eq.SmoothTchebycheff(0.1)),
    "MGDA": plain(eq.MGDA()),
    "ExcessMTL": plain(eq.ExcessRisk()),
    "MoCo tracking": plain(eq.MoCo(0.5, tracking=0.5)),
    "evenly": evenly,
    "accumulating": accumulating(eq.OMD()),
    "accumulating MGDA": accumulating(eq.MGDA()),
    "held out": held_out,
    "interrupted": interrupted,
    "spoiled": spoiled,
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
    dist.destroy_process_group()
