"""Slots in a folder: one safetensors file each, and an index of the current ones.

Files are never modified. New ones get new names, and the index is replaced last: if the process dies or the disk is
full, the index still names a complete, consistent set of files. Memory-mapped tensors stay readable.
"""

import contextlib
import hashlib
import json
import os
import re
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from equipoise.atomic import release_lock, replacing, take_lock
from equipoise.conversion.plan import Numbers, Params, record_dtype
from equipoise.errors import StateMismatchError, StoreError, require
from equipoise.train.slots import blend

__all__ = ["OnDisk"]

_LIST = "slots.json"
_CODES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
}
"""The safetensors codes of the dtypes that are recorded."""
_OURS = re.compile(r"\.?slot-\d+-(\d+)\.safetensors(\..*\.part)?")


class _Entry(NamedTuple):
    file: str
    sha256: str


class OnDisk:
    """Slots in a folder that belongs to one run.

    Slots are mapped, blended and written one tensor at a time, so that at most one tensor is in memory.

    Args:
        folder: Created if missing. If it holds the copies of another run, `fill` must replace them.
        params: What the first slot holds.
        number: How many slots.
    """

    device = torch.device("cpu")
    on_host = True
    copies = ()
    """Slots that are buffers in memory: none."""

    def __init__(self, folder: str | os.PathLike[str], params: Params, number: int) -> None:
        _library()
        self.folder = Path(folder).absolute()
        self.number = number
        self._dtypes = {name: record_dtype(p) for name, p in params.items()}
        unknown = {name: dtype for name, dtype in self._dtypes.items() if dtype not in _CODES}
        require(not unknown, f"parameters in a folder must be recorded in one of {list(_CODES)}", unknown)
        self._shapes = {name: p.shape for name, p in params.items()}
        self._entries: dict[int, _Entry] = {}
        self._changes: dict[int, _Entry] = {}
        self.begun: list[None] = []
        """Not empty once the index names the files of the current plan."""
        self.free: list[dict[str, Tensor]] = []
        """Free buffers for copies of θ."""
        with self._explained("store could not be made", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._release = weakref.finalize(self, release_lock, _lock(self.folder), os.getpid())
            found = {path.name for path in self.folder.iterdir()}
            self._serial = max((int(ours[1]) for name in found if (ours := _OURS.fullmatch(name))), default=0)
            self._foreign = found if _LIST in found else set()
            """The files of another run, which `fill` replaces."""
        if not self._foreign:
            with self.together():
                self.blend(0, params, 1.0)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        rule = "a run with its store in a folder cannot be copied: load its state_dict into one with another store"
        raise StoreError(f"{rule}; found {self.folder}")

    def read(self, slot: int) -> Params:
        """A slot, memory-mapped after its checksum is verified; zeros before the first write."""
        self.check()
        entry = self._changes.get(slot) or self._entries.get(slot)
        if entry is None:
            return {n: torch.zeros((), dtype=dtype).expand(self._shapes[n]) for n, dtype in self._dtypes.items()}
        path = self.folder / entry.file
        with self._explained(f"slot {slot} could not be read", path):
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != entry.sha256:
                raise StoreError(f"slot {slot} must be what was written; found other contents in {path}")
            tensors: dict[str, Tensor] = _library().load_file(path)
        return {name: tensors[name] for name in self._dtypes}

    def blend(self, slot: int, new: Params, mix: float) -> None:
        """Write the blend to a new file."""
        self._write(slot, self._blended(self.read(slot), new, mix) if mix < 1 else ((n, new[n]) for n in self._dtypes))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Group changes: the index gets all of them or none."""
        if not self._release.alive:
            raise StoreError(f"store must be open to be written to; found {self.folder} closed")
        try:
            yield
            self._commit(self._entries | self._changes)
        finally:
            self._changes = {}
            self._sweep()

    def finish(self, plan: Numbers, params: Params) -> bool:  # noqa: ARG002
        """Whether an interrupted plan was completed; if not, the index still names the files from before it."""
        if not self.begun and self._entries:
            with contextlib.suppress(StoreError):
                self._list(self._entries)
        return bool(self.begun)

    def fill(self, copies: Iterable[Params]) -> None:
        """Rewrite all slots, including those of another run."""
        with self.together():
            for slot, copy in enumerate(copies):
                self.blend(slot, copy, 1.0)

    def check(self) -> None:
        """Raise StateMismatchError while the folder holds the copies of another run."""
        if self._foreign:
            raise StateMismatchError(
                f"store must be a new folder, or that of a run that goes on; found copies of another run in "
                f"{self.folder}: give load_state_dict the checkpoint of that run, or give another folder"
            )

    def close(self) -> None:
        """Unlock the folder for other runs."""
        self._release()

    def _blended(self, old: Params, new: Params, mix: float) -> Iterator[tuple[str, Tensor]]:
        """Yield blended tensors one at a time in one buffer: modified mapped tensors would stay in memory."""
        sizes = {
            dtype: max(old[n].numel() for n, d in self._dtypes.items() if d == dtype) for dtype in self._dtypes.values()
        }
        scratch = {dtype: torch.empty(size, dtype=dtype) for dtype, size in sizes.items()}
        for name, dtype in self._dtypes.items():
            one = scratch[dtype][: old[name].numel()].view(old[name].shape).copy_(old[name])
            blend({name: one}, {name: new[name]}, mix)
            yield name, one

    def _write(self, slot: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write tensors in the order of the header, which has their offsets."""
        self._serial += 1
        path, digest = self.folder / f"slot-{slot}-{self._serial}.safetensors", hashlib.sha256()
        with self._explained(f"slot {slot} could not be written", path), replacing(path) as file:
            header = self._header()
            file.write(header)
            digest.update(header)
            for name, tensor in tensors:
                plain = tensor.detach().to("cpu", self._dtypes[name]).flatten()
                if plain.stride() != (1,):  # an expanded scalar counts as contiguous
                    plain = plain.clone(memory_format=torch.contiguous_format)
                data = plain.view(torch.uint8).numpy().data
                file.write(data)
                digest.update(data)
        self._changes[slot] = _Entry(path.name, digest.hexdigest())

    def _header(self) -> bytes:
        """The header of a safetensors file: its length in eight bytes, then the offsets of each tensor.

        safetensors writes a whole file to a path or to memory; here tensors are appended to a file one at a time.
        """
        end, entries = 0, {}
        for name, dtype in self._dtypes.items():
            begin, end = end, end + dtype.itemsize * self._shapes[name].numel()
            entries[name] = {"dtype": _CODES[dtype], "shape": list(self._shapes[name]), "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)  # so that tensors are aligned
        return len(text).to_bytes(8, "little") + text

    def _commit(self, entries: dict[int, _Entry]) -> None:
        self._list(entries)
        self._entries, self._foreign, self.begun = entries, set(), [None]

    def _sweep(self) -> None:
        """Remove the files that the index does not name."""
        named = self._foreign | {entry.file for entry in self._entries.values()}
        with contextlib.suppress(OSError):  # files that cannot be removed only take space
            for path in self.folder.iterdir():
                if _OURS.fullmatch(path.name) and path.name not in named:
                    path.unlink(missing_ok=True)

    def _list(self, entries: dict[int, _Entry]) -> None:
        listed = {str(slot): entry._asdict() for slot, entry in sorted(entries.items())}
        path = self.folder / _LIST
        with self._explained("the list of slots could not be written", path), replacing(path) as file:
            file.write(json.dumps({"slots": listed}, indent=1).encode())

    @contextmanager
    def _explained(self, what: str, path: Path) -> Iterator[None]:
        from safetensors import SafetensorError  # noqa: PLC0415

        try:
            yield
        except StoreError:
            raise
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{what}: {getattr(error, 'strerror', None) or error}, {path}") from error


def _library() -> ModuleType:
    """The module safetensors.torch."""
    try:
        import safetensors.torch as library  # noqa: PLC0415
    except ImportError as missing:
        raise ImportError("a store in a folder needs safetensors: pip install safetensors") from missing
    return library


def _lock(folder: Path) -> int:
    """Lock a folder; StoreError if another run has it."""
    try:
        return take_lock(folder / "lock")
    except BlockingIOError as error:
        raise StoreError(
            f"store must be a folder that no other run has open; found {folder} {error.strerror}: "
            "every rank needs a folder of its own, and a run in this process must be closed or forgotten first"
        ) from None
