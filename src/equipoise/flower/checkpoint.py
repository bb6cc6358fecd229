"""Checkpoints of a server: a folder of numpy files and an index of the current ones. No pickle.

New files get new names, and the index is replaced last, with the SHA-256 of every file and of itself: if the process
dies, the index still names a complete, consistent set of files. Then files of this run that the index no longer names
are removed; other files are left alone.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.atomic import read_json, release_lock, replacing, take_lock, write_json
from equipoise.errors import DamagedFileError, StoreError, require
from equipoise.train.checkpoint import check_configuration

__all__ = ["Checkpoint", "Kept"]

_LIST, _LOCK = "checkpoint.json", "checkpoint.lock"
_OURS = re.compile(r"(?:model|state|slot-[0-9]+)-[0-9]+-([0-9a-f]{8})\.npz")
"""The name of a file: its content, the round, and the run that wrote it."""


class _File(NamedTuple):
    """The entry of a file in the index."""

    name: str
    sha256: str


class Kept(NamedTuple):
    """The content of a checkpoint: tensors by name."""

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
        folder: Created if missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._run = secrets.token_hex(4)
        self._files: dict[str, _File] = {}
        self._release: weakref.finalize[Any, Any] | None = None

    @property
    def empty(self) -> bool:
        """Whether it has been neither read nor written."""
        return not self._files

    def open(self, *, resume: bool) -> None:
        """Lock the folder until `close` or the end of the process.

        Args:
            resume: Whether to resume from the checkpoint in it.

        Raises:
            StoreError: Another run has the folder open.
            ValueError: It has no checkpoint to resume from, or one that would be overwritten.
        """
        self.close()
        if resume:
            require(self._list.is_file(), f"resume must be a folder with a {_LIST}", self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = take_lock(self.folder / _LOCK)
        except BlockingIOError as error:
            rule = "checkpoint must be a folder that no other run has open"
            raise StoreError(f"{rule}; found {self.folder} {error.strerror}") from None
        self._release = weakref.finalize(self, release_lock, handle, os.getpid())
        if not resume and self._list.exists():
            self.close()
            rule = "checkpoint must be a folder without the checkpoint of another run"
            remedy = "give resume= this folder to go on with that run, or checkpoint= another folder"
            raise ValueError(f"{rule}; found {self._list}: {remedy}")
        self._files = {}

    def close(self) -> None:
        """Unlock the folder for other runs."""
        if self._release is not None:
            self._release()
            self._release = None

    def setting(self, name: str) -> str | None:
        """A setting of the run that is kept here; None if there is none, or no run."""
        if not self._list.is_file():
            return None
        settings = read_json(self._list).get("settings")
        found = settings.get(name) if isinstance(settings, dict) else None
        return found if isinstance(found, str) else None

    def load(self, settings: Mapping[str, str]) -> Kept:
        """Read it.

        Args:
            settings: The settings of the run to resume.

        Raises:
            StateMismatchError: It belongs to another configuration; the message says what differs.
            DamagedFileError: A file was altered or truncated; the message names it.
        """
        found = read_json(self._list)
        if found.keys() != {"round", "run", "settings", "files"}:
            raise DamagedFileError(f"{self._list} must be the list of a checkpoint; found {sorted(found)}")
        check_configuration(found["settings"], settings)
        files = {name: _File(*entry) for name, entry in found["files"].items()}
        for file in files.values():
            ours = _OURS.fullmatch(file.name)
            if ours is None or ours[1] != found["run"]:
                raise DamagedFileError(f"{self._list} must name files of run {found['run']}; found {file.name!r}")
        held = {name: self._read(file) for name, file in files.items()}
        slots = {int(name.removeprefix("slot-")): x for name, x in held.items() if name.startswith("slot-")}
        self._run, self._files = found["run"], files
        return Kept(found["round"], held["model"], held["state"], slots)

    def keep(self, kept: Kept, settings: Mapping[str, str], in_use: set[int]) -> None:
        """Write the model, the state and the given slots; files of other slots stay.

        Args:
            kept: What to write; only the round if the model is empty.
            settings: Everything that determines the run.
            in_use: The slots in use; files of others are removed.
        """
        files = {n: f for n, f in self._files.items() if not n.startswith("slot-") or int(n[5:]) in in_use}
        if kept.model:
            parts = {"model": kept.model, "state": kept.state, **{f"slot-{j}": s for j, s in kept.slots.items()}}
            for name, tensors in parts.items():
                files[name] = self._write(f"{name}-{kept.round}-{self._run}.npz", tensors)
        content = {"round": kept.round, "run": self._run, "settings": dict(settings), "files": files}
        write_json(self._list, content)
        self._files = files
        self._remove_stale()

    @property
    def _list(self) -> Path:
        return self.folder / _LIST

    def _remove_stale(self) -> None:
        """Remove files of this run that the index does not name."""
        named = {file.name for file in self._files.values()}
        for path in self.folder.iterdir():
            ours = _OURS.fullmatch(path.name)
            if ours is not None and ours[1] == self._run and path.name not in named:
                with contextlib.suppress(OSError):  # a file that cannot be removed only takes space
                    path.unlink()

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> _File:
        # Positions, not names, as keys: a tensor may be called anything.
        arrays: dict[str, Any] = {f"t{k}": tensor.numpy() for k, tensor in enumerate(tensors.values())}
        with replacing(self.folder / name) as file:
            np.savez(file, names=np.array(json.dumps(list(tensors))), **arrays)
        with (self.folder / name).open("rb") as written:
            return _File(name, hashlib.file_digest(written, "sha256").hexdigest())

    def _read(self, entry: _File) -> dict[str, Tensor]:
        path = self.folder / entry.name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != entry.sha256:
                    raise DamagedFileError(f"{path} is damaged: it must have SHA-256 {entry.sha256}; found {found}")
                file.seek(0)
                with np.load(file, allow_pickle=False) as arrays:
                    names = json.loads(str(arrays["names"]))
                    return {key: torch.from_numpy(arrays[f"t{k}"]) for k, key in enumerate(names)}
        except FileNotFoundError:
            raise DamagedFileError(f"{path} must be there, as {self._list} names it; found no such file") from None
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            if isinstance(error, DamagedFileError):
                raise
            raise DamagedFileError(f"{path} must be a file of a checkpoint: {error}") from error
