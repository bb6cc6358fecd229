"""Files with a flipped bit, or truncated: read correctly, or refused with their name."""

import gzip
import hashlib
import lzma
import os
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.torture.outcome import Outcome, Row, Trial, collect, judge
from tests.torture.runs import digest, save_training, serve, simulate, start_training
from torch import Tensor

import equipoise as eq
from equipoise.datasets.files import File, read_content
from equipoise.experiments.results import CellStore, cells_in, pack

NUMBER, PIECE = 2_000, 100
"""Flips per kind of file, and those of one process."""
CUT = 20
"""One of so many damages is a cut instead, in addition to the flips."""


class Written(NamedTuple):
    """Files of one kind, and how to read them."""

    files: list[Path]
    is_right: Callable[[], bool]
    """Whether what is read now is what was written."""


def rows(share: float, seed: int) -> list[Row]:
    """A row for every kind of file."""
    found: dict[str, Row] = {}
    trials: list[Trial] = []
    number = max(5, round(NUMBER * share))
    for kind, write in KINDS.items():
        for first in range(0, number, PIECE):
            count = min(PIECE, number - first)
            trials.append((f"flips: {kind}", partial(_damage, kind, write, count, f"{seed} {kind} {first}")))
    collect(found, trials)
    return [found[name] for name in sorted(found)]


def _damage(kind: str, write: Callable[[Path], Written], number: int, seed: str) -> list[Outcome]:
    os.fsync = lambda _: None  # type: ignore[assignment]
    draws, outcomes = random.Random(seed), []  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        written = write(Path(folder))
        assert written.is_right()
        for k in range(number + number // CUT):
            path = draws.choice(written.files)
            data = path.read_bytes()
            place, bit = draws.randrange(len(data)), draws.randrange(8)
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            what = f"{path.name}, seed {seed!r}, trial {k}, bit {bit} of byte {place} of {len(data)}"
            if k >= number:
                changed, what = changed[:place], f"{path.name}, seed {seed!r}, trial {k}, cut to {place} bytes"
            _put(path, changed)
            outcomes.append(judge(written.is_right, f"{kind}: {what}", path))
            _put(path, data)
    return outcomes


def _put(path: Path, data: bytes | bytearray) -> None:
    """As a new file: the old one may be memory-mapped."""
    beside = path.with_name("beside")
    beside.write_bytes(data)
    beside.replace(path)


# Kinds of files -----------------------------------------------------------------------------


def _tree(value: Any) -> Any:
    """A value that can be compared, with a checksum for every tensor."""
    if isinstance(value, Tensor):
        return digest({"": value})
    if isinstance(value, dict):
        return {key: _tree(inner) for key, inner in value.items()}
    return [_tree(inner) for inner in value] if isinstance(value, list | tuple) else repr(value)


def _trained(folder: Path, store: str) -> Any:
    toy, mol, _ = start_training(folder, store)
    toy.run(mol, 7)
    save_training(folder, toy, mol, 7)
    return mol


def _training_file(folder: Path) -> Written:
    _trained(folder, "device")
    expected = _tree(eq.train.load(folder / "run.pt"))
    return Written([folder / "run.pt"], lambda: bool(_tree(eq.train.load(folder / "run.pt")) == expected))


def _slot_file(folder: Path) -> Written:
    mol = _trained(folder, "folder")
    expected = _tree(mol.state_dict())
    files = sorted((folder / "slots").glob("*.safetensors"))
    return Written(files, lambda: bool(_tree(mol.state_dict()) == expected))


def _slot_list(folder: Path) -> Written:
    mol = _trained(folder, "folder")
    expected = digest(mol.solution())
    mol.close()

    def is_right() -> bool:
        _, again, _ = start_training(folder, "folder")
        try:
            return digest(again.solution()) == expected
        finally:
            again.close()

    return Written([folder / "slots" / "slots.json"], is_right)


def _simulation(folder: Path) -> Written:
    expected = simulate(folder)
    return Written([folder / "run.npz"], lambda: simulate(folder) == expected)


def _flower(folder: Path, pattern: str) -> Written:
    expected = serve(folder)
    return Written(sorted(folder.glob(pattern)), lambda: serve(folder) == expected)


def _cell(folder: Path) -> Written:
    store, spec = CellStore(folder, behind=()), {"kind": "torture", "seed": 1, "weights": [0.25, 0.75]}
    result = {"loss": [1.5, 2.25e-3], "name": "a cell", "rounds": 12}
    path = store.write(spec, result)
    expected = store.read(spec)
    return Written([path], lambda: store.read(spec) == expected)


def _packed_cells(folder: Path) -> Written:
    store, path = CellStore(folder / "cells", behind=()), folder / "cells.jsonl.xz"
    for seed in range(3):
        store.write({"kind": "torture", "seed": seed}, {"loss": [1.5, 2.25e-3 * seed]})
    expected = list(cells_in([store.folder]))
    pack(expected, path)
    return Written([path], lambda: sorted(map(str, cells_in([path]))) == sorted(map(str, expected)))


def _content() -> bytes:
    return np.random.default_rng(0).integers(0, 64, 700, dtype=np.uint8).tobytes()


def _data_file(folder: Path) -> Written:
    path, content = folder / "data.bin.gz", _content()
    path.write_bytes(gzip.compress(content))
    file = File("data.bin", hashlib.sha256(content).hexdigest(), len(content), {".gz": ""})
    return Written([path], lambda: read_content(path, file).tobytes() == content)


def _decoded_cache(folder: Path) -> Written:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    path, content = folder / "data.bin.xz", _content()
    path.write_bytes(lzma.compress(content))
    file = File("data.bin", hashlib.sha256(content).hexdigest(), len(content), {".xz": ""})
    read_content(path, file)
    copies = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    return Written(copies, lambda: read_content(path, file).tobytes() == content)


KINDS: dict[str, Callable[[Path], Written]] = {
    "train.save": _training_file,
    "slot of a folder store": _slot_file,
    "list of a folder store": _slot_list,
    "simulator checkpoint": _simulation,
    "Flower checkpoint.json": partial(_flower, pattern="checkpoint.json"),
    "Flower .npz": partial(_flower, pattern="*.npz"),
    "result cell": _cell,
    "packed cells": _packed_cells,
    "data file": _data_file,
    "decoded cache": _decoded_cache,
}
