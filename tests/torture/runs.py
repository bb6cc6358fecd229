"""Three runs that resume from a checkpoint: a training loop, a simulation, a Flower server."""

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import flwr.serverapp  # noqa: F401
import numpy as np
import torch
from tests.federated.conftest import Blocks
from tests.flower.conftest import Town
from tests.train.conftest import Toy, make_toy
from torch import Tensor

import equipoise as eq
from equipoise.datasets import Dataset

logging.getLogger("flwr").setLevel(logging.CRITICAL)
STEPS, ROUNDS = 30, 8
METHOD = (eq.SelfTuned(), eq.Suffix(power=1.0, capacity=3))


class Course(NamedTuple):
    """A run: begins in a folder or goes on from the checkpoint there, and gives a digest of all that came out."""

    name: str
    run: Callable[[Path], str]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 of names, types, shapes and every bit."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        x = tensor.detach().cpu().contiguous()
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode() + x.numpy().tobytes())
    return found.hexdigest()


# The training loop --------------------------------------------------------------------------


def start_training(folder: Path, store: str, **settings: Any) -> tuple[Toy, Any, int]:
    """A model with its optimizer, its MultiObjective and the steps done, new or from the checkpoint."""
    toy, file, slots = make_toy(torch.optim.Adam, lr=0.02), folder / "run.pt", folder / "slots"
    if not file.exists():  # the copies of a run that was killed before it saved anything
        shutil.rmtree(slots, ignore_errors=True)
    preference = torch.tensor([0.2, 0.3, 0.5])
    where: Any = slots if store == "folder" else store
    mol = eq.MultiObjective(toy.model, toy.optimizer, preference, method=METHOD, store=where, **settings)
    if not file.exists():
        return toy, mol, 0
    saved = eq.train.load(file)
    toy.model.load_state_dict(saved["model"])
    toy.optimizer.load_state_dict(saved["optimizer"])
    mol.load_state_dict(saved["mol"])
    return toy, mol, saved["step"]


def save_training(folder: Path, toy: Toy, mol: Any, step: int) -> None:
    """What `start_training` goes on from."""
    parts = {"model": toy.model.state_dict(), "optimizer": toy.optimizer.state_dict(), "mol": mol.state_dict()}
    eq.train.save({**parts, "step": step}, folder / "run.pt")


def train(folder: Path, store: str, started: list[Any] | None = None) -> str:
    """Train to the end, with a checkpoint after every step; `started` is given the MultiObjective."""
    toy, mol, done = start_training(folder, store)
    if started is not None:
        started.append(mol)
    for step in range(done, STEPS):
        toy.run(mol, 1, step)
        save_training(folder, toy, mol, step + 1)
    found = digest({**mol.solution(), **{f"last.{n}": p for n, p in toy.params().items()}, "λ": mol.duals})
    mol.close()
    return found


# The simulation -----------------------------------------------------------------------------


def clients() -> tuple[Any, Dataset]:
    """A task of three clients, and their data: a bright pixel says the class."""
    draws, sizes = np.random.default_rng(0), (6, 9, 4)
    parts = []
    for _ in range(2):
        labels = draws.integers(0, 3, sum(sizes))
        inputs = draws.integers(0, 128, (sum(sizes), 1, 3, 3))
        inputs.reshape(len(labels), -1)[np.arange(len(labels)), labels] += 127
        parts += [torch.from_numpy(inputs.astype(np.uint8)), torch.from_numpy(labels)]
    data = Dataset("toy", parts[0], parts[1], parts[2], parts[3], ("0", "1", "2"), scale=255)
    work = eq.federated.LocalWork(2, 4, 1.0)
    return eq.federated.Task("toy", Blocks(sizes, sizes), eq.federated.Dense((9, 3)), work, ROUNDS), data


def simulate(folder: Path) -> str:
    """Simulate to the end, with a checkpoint after every round."""
    task, data = clients()
    result = eq.federated.simulate(
        task, "equipoise", dataset=data, evaluate_every=3, checkpoint=folder / "run.npz", checkpoint_seconds=0
    )
    models = {f"{k}.{n}": x for k, params in result.params.items() for n, x in params.items()}
    return digest({**models, **result.history._asdict(), "test": result.test["own"].losses})


# The Flower server --------------------------------------------------------------------------


def serve(folder: Path, rounds: int = ROUNDS) -> str:
    """Run a Flower server to the end, with a checkpoint after every round."""
    town = Town()
    place = {"resume": folder} if (folder / "checkpoint.json").exists() else {"checkpoint": folder}
    strategy = town.strategy(eq.SelfTuned(), eq.Suffix(power=1.0, capacity=3), **place)
    result = strategy.start(town.grid(), town.arrays(), num_rounds=rounds)
    found = hashlib.sha256(f"{strategy.round} {strategy.weights.tolist()}".encode())
    for arrays in (result.arrays, strategy.solution()):
        for name, array in arrays.items():
            found.update(name.encode() + array.data)
    return found.hexdigest()


@cache
def warm_up() -> None:
    """What torch and Flower do once in a process takes seconds; forked processes need not do it again."""
    with tempfile.TemporaryDirectory() as folder:
        for k, course in enumerate(COURSES):
            place = Path(folder, str(k))
            place.mkdir()
            course.run(place)


COURSES = [
    *(Course(f"training, {store}", partial(train, store=store)) for store in ("device", "host", "folder")),
    Course("simulation", simulate),
    Course("Flower server", serve),
]
