"""Checkpoints of a simulation: the server's state in one file of numpy arrays, no pickle."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import state as states
from equipoise.atomic import check_zip, sealed_zip
from equipoise.errors import StateMismatchError
from equipoise.federated.local_work import Evaluation
from equipoise.federated.server import Curve, Point, Server

__all__ = ["Checkpoint"]


class Checkpoint:
    """The server's state in one file: numpy arrays, no pickle."""

    def __init__(self, path: Path, settings: dict[str, str], seconds: float) -> None:
        self.path, self.settings, self.seconds = path, settings, seconds
        self.written = time.monotonic()

    def load(self, server: Server) -> Server:
        """The saved state, or the given one if there is none.

        Raises:
            DamagedFileError: The file was altered or truncated.
            StateMismatchError: The file belongs to another run; the message says what differs.
        """
        if not self.path.is_file():
            return server
        check_zip(self.path)
        with np.load(self.path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        found = json.loads(str(arrays.pop("settings")))
        for key, value in self.settings.items():
            if found.get(key) != value:
                raise StateMismatchError(
                    f"checkpoint {self.path} belongs to another run: {key} must be {value}; found {found.get(key)}"
                )
        device = next(iter(server.params.values())).device
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        for name, like in states.flatten(server.weighting).items():
            if f"weighting.{name}" in tensors:
                tensors[f"weighting.{name}"] = tensors[f"weighting.{name}"].to(like.device)
        round_ = int(tensors.pop("round"))

        def part(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}

        return Server(
            round_,
            part("params"),
            part("buffers"),
            states.unflatten(part("weighting"), server.weighting),
            {name: states.unflatten(part(f"records.{name}"), record) for name, record in server.records.items()},
            list(tensors["losses"]),
            list(tensors["coefficients"]),
            list(tensors["archive"]),
            {name: _points(part(f"curves.{name}")) for name in server.curves},
            tensors["seconds"].tolist(),
        )

    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self.written >= self.seconds

    def keep(self, server: Server) -> None:
        """Write the state."""
        tensors = {
            **{f"params.{n}": t for n, t in server.params.items()},
            **{f"buffers.{n}": t for n, t in server.buffers.items()},
            **{f"weighting.{n}": t for n, t in states.flatten(server.weighting).items()},
            **{f"records.{k}.{n}": t for k, r in server.records.items() for n, t in states.flatten(r).items()},
            **{n: torch.stack(getattr(server, n)) for n in ("losses", "coefficients", "archive")},
            **{f"curves.{k}.{n}": t for k, points in server.curves.items() for n, t in _arrays(points).items()},
            "seconds": torch.tensor(server.seconds, dtype=torch.float64),
        }
        arrays: dict[str, Any] = {name: t.cpu().numpy() for name, t in tensors.items()}
        with sealed_zip(self.path) as file:
            np.savez(file, settings=np.array(json.dumps(self.settings)), round=np.array(server.round), **arrays)
        self.written = time.monotonic()


def _arrays(points: Curve) -> dict[str, Tensor]:
    """The points of a curve as tensors."""
    if not points:
        return {}
    parts = {part: [getattr(point, part) for point in points] for part in ("train", "test")}
    return {
        "rounds": torch.tensor([point.round for point in points]),
        **{
            f"{part}.{field}": torch.stack([getattr(evaluation, field) for evaluation in of])
            for part, of in parts.items()
            if of[0] is not None
            for field in Evaluation._fields
        },
    }


def _points(arrays: dict[str, Tensor]) -> Curve:
    """The inverse of `_arrays`."""
    if not arrays:
        return []

    def evaluation(part: str, k: int) -> Evaluation | None:
        if f"{part}.losses" not in arrays:
            return None
        return Evaluation(*(arrays[f"{part}.{field}"][k] for field in Evaluation._fields))

    return [Point(r, evaluation("train", k), evaluation("test", k)) for k, r in enumerate(arrays["rounds"].tolist())]
