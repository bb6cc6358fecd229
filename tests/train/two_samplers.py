"""A run with drawn batches, as one process of one or of two.

    python two_samplers.py RANK RANKS FOLDER

leaves what it found in FOLDER/RANK-RANKS.pt.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq


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
    found = {"seen": seen, "lambda": torch.stack(duals), "weight": model.weight.detach()}
    torch.save(found, folder / f"{rank}-{ranks}.pt")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
