"""A run with drawn batches, as one process of one or of two.

    python two_samplers.py RANK RANKS FOLDER

leaves what it found in FOLDER/RANK-RANKS.pt.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq


def accumulated(rank: int, ranks: int) -> torch.Tensor:
    """Weights after steps of two micro-batches, whose rows and tokens the ranks have in different numbers."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 7).double()
    forward: Any = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    w = torch.full((3,), 1 / 3, dtype=torch.float64)
    mol = eq.MultiObjective(model, optimizer, w, method=(eq.OMD(0.3), eq.Suffix()))
    for _ in range(4):
        calls = []
        for rows in (3, 9):
            x = torch.randn(rows, 6, 5, generator=generator, dtype=torch.float64)
            labels, domains = (torch.randint(k, (rows, 6), generator=generator) for k in (7, 3))
            labels[torch.rand(rows, 6, generator=generator) < 0.4] = -100
            mine = slice(None) if ranks == 1 else slice(1) if rank == 0 else slice(1, None)
            calls.append((x[mine], labels[mine], domains[mine]))
        counts = torch.stack([eq.train.count_tokens(labels, domains, 3) for _, labels, domains in calls])
        for k, (share, (x, labels, domains)) in enumerate(zip(eq.train.step_shares(counts), calls, strict=True)):
            local = ranks > 1 and k == 0
            with forward.no_sync() if local else nullcontext():
                (mol(*eq.token_losses(forward(x), labels, domains, 3, share=share)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.detach()


def main(rank: int, ranks: int, folder: Path) -> None:
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    domains = torch.tensor([0] * 60 + [1] * 20 + [2] * 10)
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)).double()
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1).double()
    forward = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    mol = eq.MultiObjective(
        model, optimizer, torch.full((3,), 1 / 3, dtype=torch.float64), method=(eq.OMD(0.3), eq.Suffix())
    )
    sampler = eq.DomainSampler(domains, 8 // ranks, steps=20)
    data = sampler.with_draws(TensorDataset(x, torch.arange(90)))
    seen, duals = [], []
    for (inputs, numbers), draw in DataLoader(data, batch_sampler=sampler):
        values = (forward(inputs).squeeze(1) - inputs[torch.arange(len(inputs)), draw.domain]).square()
        scalar = mol(*eq.group_losses(values, draw.domain, 3, weights=draw.weight))
        sampler.follow(mol)
        scalar.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(numbers.tolist())
        assert mol.duals is not None
        duals.append(mol.duals.clone())
    found = {
        "accumulated": accumulated(rank, ranks),
        "seen": seen,
        "lambda": torch.stack(duals),
        "weight": model.weight.detach(),
    }
    torch.save(found, folder / f"{rank}-{ranks}.pt")
    if ranks > 1:
        dist.barrier()
        os._exit(0)  # a gloo thread that frees a tensor while the interpreter ends aborts the process


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
