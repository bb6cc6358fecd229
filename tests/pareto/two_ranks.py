"""A ParetoSet on one rank of several, each with its part of the same rows.

    python two_ranks.py RANK RANKS FOLDER

leaves λ, the answer and what was drawn in FOLDER/RANK.pt.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq

STEPS, ROWS = 12, 16


def rows_of(step: int) -> torch.Tensor:
    """The preferences of all ranks in a step."""
    w = torch.rand(ROWS, generator=torch.Generator().manual_seed(step), dtype=torch.float64) * 0.9 + 0.05
    return torch.stack([w, 1 - w], -1).float()


def train(rank: int, ranks: int) -> dict[str, object]:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    model = DistributedDataParallel(net) if ranks > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pareto = eq.ParetoSet(net, optimizer, 2, nodes=6, margin=0.05)
    drawn = pareto.draw(4)
    for step in range(STEPS):
        w = rows_of(step).chunk(ranks)[rank]
        x = model(w)
        pareto(torch.cat([x**2, (x - 2) ** 2], -1), w).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"duals": pareto.node_duals, "solution": pareto.solution(), "drawn": drawn, "step": pareto.step}


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=ranks)
    torch.save(train(rank, ranks), folder / f"{rank}.pt")
    dist.barrier()
    os._exit(0)  # a gloo thread that frees a tensor while the interpreter ends aborts the process


if __name__ == "__main__":
    main()
