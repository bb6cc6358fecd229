"""The split of the digits over clients, and the model."""

from functools import cache

import torch
from torch import Tensor, nn

from equipoise.datasets import load
from equipoise.federated import ClientData, Dense, Rotation, deal

MODEL = Dense((64, 50, 10))


def turns(clients: int) -> tuple[int, ...]:
    """Seven of ten clients see their digits upright, two turned by 90°, one by 180°; at least one of each turn."""
    quarter, half = max(1, clients // 5), max(1, clients // 10)
    return (0,) * (clients - quarter - half) + (1,) * quarter + (2,) * half


@cache
def dealt(clients: int, seed: int) -> ClientData:
    return deal(load("digits"), Rotation(turns(clients)), (seed,))


def samples(client: int, clients: int, seed: int, *, test: bool = False) -> tuple[Tensor, Tensor]:
    data = dealt(clients, seed)
    part = data.test if test else data.train
    n = int(part.counts[0, client])
    return part.inputs[0, client, :n].to(torch.float32) / data.scale, part.labels[0, client, :n]


def first_model(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODEL.module()
