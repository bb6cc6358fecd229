"""Checkpoints of a server: a folder of numpy files and a list of those that count. No pickle.

Every file is written under a name of its own, the list last: whenever the process dies, the list speaks of files that
are whole and belong together. What it no longer speaks of is removed after it.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.atomic import replacing
from equipoise.errors import require
from equipoise.train.checkpoint import check_configuration

__all__ = ["Checkpoint", "Kept"]

_LIST = "checkpoint.json"


class Kept(NamedTuple):
    """What a checkpoint holds: tensors by name."""

    round: int
    """Rounds done."""
    model: dict[str, Tensor]
    state: dict[str, Tensor]
    """Everything else that changes in every round."""
    slots: dict[int, dict[str, Tensor]]
    """The archive's models, by slot."""


class Checkpoint:
    """The checkpoint in a folder.

    Args:
        folder: Made if it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._run = secrets.token_hex(4)
        self._files: dict[str, str] = {}

    @property
    def empty(self) -> bool:
        """Whether it was neither read nor written."""
        return not self._files

    def load(self, settings: Mapping[str, str]) -> Kept:
        """Read it.

        Args:
            settings: Those of the run that is to go on.

        Raises:
            StateMismatchError: It belongs to another configuration; the message says what differs.
            ValueError: There is none.
        """
        listed = self.folder / _LIST
        require(listed.is_file(), f"resume must be a folder with a {_LIST}", self.folder)
        found = json.loads(listed.read_text(encoding="utf-8"))
        check_configuration(found["settings"], settings)
        self._files = dict(found["files"])
        slots = {int(n.removeprefix("slot-")): self._read(n) for n in self._files if n.startswith("slot-")}
        return Kept(found["round"], self._read("model"), self._read("state"), slots)

    def keep(self, kept: Kept, settings: Mapping[str, str], in_use: set[int]) -> None:
        """Write it: the model, the state, and of the slots those given; the files of the others stay.

        Args:
            kept: What to write; nothing but the round if the model is empty.
            settings: What decides the run's course.
            in_use: The slots that count; files of others are removed.
        """
        files = {n: f for n, f in self._files.items() if not n.startswith("slot-") or int(n[5:]) in in_use}
        if kept.model:
            parts = {"model": kept.model, "state": kept.state, **{f"slot-{j}": s for j, s in kept.slots.items()}}
            for name, tensors in parts.items():
                files[name] = f"{name}-{kept.round}-{self._run}.npz"
                self._write(files[name], tensors)
        with replacing(self.folder / _LIST) as file:
            text = json.dumps({"round": kept.round, "settings": dict(settings), "files": files}, indent=1)
            file.write(text.encode())
        self._files = files
        for path in self.folder.glob("*.npz"):
            if path.name not in set(files.values()):
                path.unlink(missing_ok=True)

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        # Positions, not names, as keys: a tensor may be called anything.
        arrays: dict[str, Any] = {f"t{k}": tensor.numpy() for k, tensor in enumerate(tensors.values())}
        with replacing(self.folder / name) as file:
            np.savez(file, names=np.array(json.dumps(list(tensors))), **arrays)

    def _read(self, name: str) -> dict[str, Tensor]:
        with np.load(self.folder / self._files[name], allow_pickle=False) as file:
            return {key: torch.from_numpy(file[f"t{k}"]) for k, key in enumerate(json.loads(str(file["names"])))}
