"""What `MultiObjective` costs in a training loop, against the weighted sum (LS) in the same run.

    python benchmarks/training.py [--check] [--quick] [--json FILE]
    python benchmarks/training.py --device cuda [--only "batch 260"] [--check] [--json FILE]
    python benchmarks/training.py [--device cuda] --store host [--check] [--json FILE]

Every candidate has its own copy of one model and takes its turn at every step, on the same batches. A ratio is the
median of those of one turn each, as a machine may be slower for a while; its range is that of the medians over the
fifths of the run. On the CPU the time is processor time of one thread, since the machine may be shared; on a CUDA
device it is wall time of short blocks of steps. Batches are drawn anew for every step, with labels that can be learnt:
as in any training, losses fall slowly and are noisy, so that hardly an iterate of ten objectives dominates another. The
archive is full before anything is measured.

TorchJD's methods are measured where it is installed: STCH as a scalarisation, MGDA and UPGrad by their Jacobian
(`autojac`) and by their Gramian (`autogram`); UPGrad needs `torchjd[quadprog_projector]`.

With `--device cuda` it is also checked that a step makes no host synchronisation, that the archive that is written late
is bit for bit the one that is written at once, and that a loss that is not finite is raised one call late, with λ and
the archive as they were. `--check` exits with 1 if a claim is missed. Beside the time of a step stands how much of
it LS itself waits for the host: with small batches nearly all, and whatever the host does more is seen there. A
graphed model (`torch.cuda.make_graphed_callables`) shows what such a step costs the device.

`--store host` compares where the copies live instead. On a CUDA device: the memory that the shell adds there, and the
time of a step with the copies in host memory over that with the copies on the device. On the CPU: the memory of the
process with the copies in a folder, in copies of the parameters, for two capacities.
"""

import argparse
import gc
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from equipoise.errors import NonFiniteLossError
from equipoise.federated import ResNet18
from equipoise.state import flatten
from equipoise.train.archive import Archive, open_slots
from equipoise.train.inputs import Store

SLOTS = 8
ARCHIVE = eq.Adaptive(power=4, capacity=SLOTS)
OURS = "OMD, Adaptive(capacity=8)"
DEFAULTS = ("equipoise", "OptOMD-TCH")
"""The default and the former one."""
LIMITS = "limits on all but one"
OVER = f"{LIMITS}, over equipoise"
Claims = dict[str, float]
"""Times LS that a candidate may take at most, by its name."""
BLOCK = 25
"""Steps of a turn on a CUDA device, between two waits for it. A loop that waits more often shows more of what the host
does: the first step after a wait has no work queued behind which it could hide."""
HOST_BOUND = 0.9
"""Beyond this part of a step's time the device has idle moments, and what the host does more is seen in full."""

Batch = tuple[Tensor, Tensor]
Step = Callable[[Batch], None]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        task: Model, objectives and batch.
        name: What was measured.
        measured: The value.
        low: Its least over the parts of the run.
        high: Its largest.
        unit: Of the value.
        at_most: The claim, if there is one.
        note: The times of both sides, or what else there is to say.
    """

    task: str
    name: str
    measured: float
    low: float
    high: float
    unit: str = "×"
    at_most: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty without a claim."""
        if self.at_most is None:
            return ""
        return "PASS" if self.measured <= self.at_most else "FAIL"


# ------------------------------------------------------------------------------- tasks
@dataclass(frozen=True)
class Task:
    """A model with m objectives: the cross-entropy on the samples of each of m groups, as many in each.

    Attributes:
        name: Of the model.
        model: Makes it.
        shape: Of one input.
        smallest: Of one input, the least that the model takes.
        m: Objectives.
        per_objective: Samples of each in a batch.
        device: Where.
    """

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    smallest: tuple[int, ...]
    m: int
    per_objective: int
    device: torch.device

    @property
    def title(self) -> str:
        """For the table."""
        return f"{self.name}, m = {self.m}, batch {self.m * self.per_objective}"

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Always the same model, with its optimizer."""
        torch.manual_seed(0)
        model = self.model().to(self.device)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)


class Stream:
    """Batches without end: random inputs (m·n, ...), group after group, with labels (m·n,) that a linear map gives."""

    def __init__(self, task: Task, shape: tuple[int, ...] | None = None) -> None:
        self.shape = (task.m * task.per_objective, *(shape or task.shape))
        self.generator = torch.Generator(task.device).manual_seed(0)
        self.teacher = self._draw((math.prod(self.shape[1:]), 10))

    def take(self, number: int) -> list[Batch]:
        """The next ones."""
        inputs = [self._draw(self.shape) for _ in range(number)]
        return [(x, (x.flatten(1) @ self.teacher).argmax(1)) for x in inputs]

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device)


def losses(model: nn.Module, batch: Batch, m: int) -> Tensor:
    """f, (m,)."""
    x, y = batch
    return cross_entropy(model(x), y, reduction="none").view(m, -1).mean(1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))


# ------------------------------------------------------------------------------- candidates
def linear(task: Task) -> Step:
    """The weighted sum, as one writes it without a library."""
    model, optimizer = task.build()
    c = torch.full((task.m,), 1.0 / task.m, device=task.device)

    def step(batch: Batch) -> None:
        (c * losses(model, batch, task.m)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def shell(task: Task, weighting: eq.Weighting[Any], conversion: eq.Conversion[Any], store: Store = "device") -> Step:
    model, optimizer = task.build()
    mol = eq.MultiObjective(model, optimizer, [1.0 / task.m] * task.m, method=(weighting, conversion), store=store)

    def step(batch: Batch) -> None:
        mol(losses(model, batch, task.m)).backward()
        optimizer.step()
        optimizer.zero_grad()

    stream = Stream(task, task.smallest)
    if isinstance(weighting, eq.SelfTuned):  # past its youth, as most of a training
        for batch in stream.take(3 * int(weighting.youth) // 2):
            step(batch)
    if isinstance(conversion, eq.Adaptive):
        for _ in range(8):
            for batch in stream.take(16):
                step(batch)
            full = mol.metrics()["archive"] == conversion.capacity
            if full:
                break
        assert full or task.m < 10, "the archive must be full"
    return step


def peers(task: Task, *, gramian: bool) -> Iterator[tuple[str, Step]]:
    """TorchJD's candidates; none where it is not installed."""
    if importlib.util.find_spec("torchjd") is None:
        return
    from torchjd import aggregation, autogram, autojac, scalarization  # noqa: PLC0415

    def scalarised() -> Step:
        model, optimizer = task.build()
        stch = scalarization.STCH(mu=0.1)

        def step(batch: Batch) -> None:
            stch(losses(model, batch, task.m)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def by_jacobian(aggregator: Any) -> Step:
        model, optimizer = task.build()

        def step(batch: Batch) -> None:
            autojac.backward(losses(model, batch, task.m))
            autojac.jac_to_grad(model.parameters(), aggregator)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def by_gramian(weighting: Any) -> Step:
        model, optimizer = task.build()
        engine = autogram.Engine(model, batch_dim=None)

        def step(batch: Batch) -> None:
            f = losses(model, batch, task.m)
            f.backward(weighting(engine.compute_gramian(f)))
            optimizer.step()
            optimizer.zero_grad()

        return step

    yield "TorchJD STCH", scalarised()
    if not gramian:
        return
    yield "TorchJD MGDA, autojac", by_jacobian(aggregation.MGDA())
    yield "TorchJD MGDA, autogram", by_gramian(aggregation.MGDAWeighting())
    if importlib.util.find_spec("quadprog") is not None:
        yield "TorchJD UPGrad, autojac", by_jacobian(aggregation.UPGrad())
        yield "TorchJD UPGrad, autogram", by_gramian(aggregation.UPGradWeighting())


# ------------------------------------------------------------------------------- measuring
def clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def take_turns(steps: dict[str, Step], task: Task, rounds: int, block: int = 1) -> dict[str, list[float]]:
    """Seconds a step of every candidate; who begins changes from round to round."""
    stream, names = Stream(task), list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for r in range(rounds):
        batches = stream.take(block)
        for name in names[r % len(names) :] + names[: r % len(names)]:
            started = clock(task.device)
            for batch in batches:
                steps[name](batch)
            times[name].append((clock(task.device) - started) / block)
    return times


def compared(times: dict[str, list[float]], task: Task, claims: Claims) -> Iterator[Row]:
    base = times["LS"]
    yield Row(task.title, "LS", 1e3 * statistics.median(base), 1e3 * min(base), 1e3 * max(base), "ms")
    for name, found in times.items():
        if name != "LS":
            yield ratio(task, name, found, base, claims.get(name))


def ratio(task: Task, name: str, times: list[float], base: list[float], limit: float | None) -> Row:
    parts = min(5, len(base))
    pairs = [ours / theirs for ours, theirs in zip(times, base, strict=True)]
    fifths = [statistics.median(pairs[k::parts]) for k in range(parts)]
    note = f"{1e3 * statistics.median(times):.4g} ms"
    return Row(task.title, name, statistics.median(pairs), min(fifths), max(fifths), at_most=limit, note=note)


def cost(task: Task, claims: Claims, rounds: int, slow: int) -> Iterator[Row]:
    """Cheap candidates take turns for all rounds; then those with a backward pass per objective, for `slow`."""
    block = 1 if task.device.type == "cpu" else BLOCK
    cheap: dict[str, Step] = {"LS": linear(task), "LS again": linear(task)}
    cheap[OURS] = shell(task, eq.OMD("adaptive"), ARCHIVE)
    for name in DEFAULTS:
        cheap[name] = shell(task, eq.methods()[name].weighting, eq.methods()[name].conversion)
    if task.device.type == "cpu":
        cheap[LIMITS] = shell(task, eq.Limits((None, *(1.0,) * (task.m - 1))), eq.Average(power=8))
    dear: dict[str, Step] = {"equipoise MGDA": shell(task, eq.MGDA(), eq.Last())} if slow > 0 else {}
    for name, step in peers(task, gramian=slow > 0):
        (cheap if name.endswith("STCH") else dear)[name] = step
    take_turns(cheap, task, 1 if task.device.type == "cpu" else 4, block)
    if task.device.type == "cuda":
        yield host_share(cheap["LS"], task)
    times = take_turns(cheap, task, rounds, block)
    yield from compared(times, task, claims)
    if LIMITS in times:
        yield ratio(task, OVER, times[LIMITS], times["equipoise"], claims.get(OVER))
    if dear:
        several = {"LS": cheap["LS"], **dear}
        take_turns(dear, task, 1)
        rows = compared(take_turns(several, task, slow, min(block, 3)), task, {})
        yield from (row for row in rows if row.name != "LS")


# ------------------------------------------------------------------------------- memory
class Allocated(TorchDispatchMode):
    """Bytes of all tensors made under it, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen or storage.device.type == "meta":  # which says how large a tensor is, and holds nothing
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def noisy_run(task: Task, capacity: int | None, steps: int) -> tuple[float, float]:
    """Peak bytes of the first and of the last tenth of a run; capacity None is LS."""
    watched = Allocated() if task.device.type == "cpu" else None
    gc.collect()
    if watched is None:
        torch.cuda.synchronize(task.device)
        floor = torch.cuda.memory_allocated(task.device)
    else:
        watched.__enter__()
    stream, m = Stream(task), task.m
    model, optimizer = task.build()
    c, mol = torch.full((m,), 1.0 / m, device=task.device), None
    if capacity is not None:
        mol = eq.MultiObjective(model, optimizer, c, method=(eq.OMD(), eq.Adaptive(power=4, capacity=capacity)))
    peaks = []
    for t in range(steps):
        if t in {0, steps - steps // 10}:
            _restart(watched, task.device)
        f = losses(model, stream.take(1)[0], m)
        ((c * f).sum() if mol is None else mol(f)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if t in {steps // 10 - 1, steps - 1}:
            peaks.append(_peak(watched, task.device) - (0 if watched else floor))
    if watched is not None:
        watched.__exit__(None, None, None)
    if mol is not None:
        assert mol.metrics()["archive"] == capacity
    return peaks[0], peaks[1]


def _restart(watched: Allocated | None, device: torch.device) -> None:
    if watched is None:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        watched.peak = watched.now


def _peak(watched: Allocated | None, device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) if watched is None else watched.peak


def memory(device: torch.device, steps: int) -> Iterator[Row]:
    """What the shell adds to the peak of LS, in copies of the parameters, with ten noisy losses."""
    task = Task("256-256-10", small, (256,), (256,), 10, 8, device)
    copy_bytes = 4 * sum(p.numel() for p in small().parameters())
    noisy_run(task, None, 10)  # what the libraries allocate once
    plain = max(noisy_run(task, None, 100))
    for capacity, length in ((1, steps // 10), (8, steps), (16, steps // 10)):
        early, late = noisy_run(task, capacity, length)
        added = (max(early, late) - plain) / copy_bytes
        # The constant: the ledger and the coefficients, and on an accelerator the copy that is put aside.
        allowed = capacity + (0.25 if device.type == "cpu" else 1.25)
        note = f"last tenth of {length:,} steps over the first: {late - early:+,.0f} bytes"
        yield Row(
            task.title, f"peak over LS, K = {capacity}", added, added, added, "copies", at_most=allowed, note=note
        )


# ------------------------------------------------------------------------------- on a CUDA device
def residual(device: torch.device, per_objective: int, side: int = 32, *, graphed: bool = False) -> Task:
    shape = (3, side, side)

    def graph() -> nn.Module:
        batch = torch.zeros((10 * per_objective, *shape), device=device)
        model = ResNet18().module().to(device)
        torch.cuda.make_graphed_callables(model, (batch,))  # in place
        return model

    if graphed:  # for inputs of one shape alone
        return Task(f"graphed ResNet-18, {side} × {side}", graph, shape, shape, 10, per_objective, device)
    return Task(f"ResNet-18, {side} × {side}", lambda: ResNet18().module(), shape, (3, 8, 8), 10, per_objective, device)


def residuals(device: torch.device) -> list[Task]:
    """ResNet-18 with batches of 128 and more."""
    large = [residual(device, each, side) for each, side in ((26, 32), (52, 32), (13, 64))]
    return [residual(device, 13), residual(device, 13, graphed=True), *large]


def fully_connected(device: torch.device, m: int, per_objective: int) -> Task:
    return Task("784-512-512-10", perceptron, (784,), (784,), m, per_objective, device)


def stepper(task: Task, *, grouped: bool, store: Store = "device") -> Step:
    """A step with losses, or with group losses and their counts; the groups are the labels."""
    model, optimizer = task.build()
    mol = eq.MultiObjective(model, optimizer, [1.0 / task.m] * task.m, method=(eq.OMD(), ARCHIVE), store=store)

    def step(batch: Batch) -> None:
        x, y = batch
        if grouped:
            scalar = mol(*eq.group_losses(cross_entropy(model(x), y, reduction="none"), y, task.m))
        else:
            scalar = mol(losses(model, batch, task.m))
        scalar.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def no_synchronisation(task: Task, *, grouped: bool, steps: int = 20, store: Store = "device") -> Iterator[Row]:
    """Steps while every hidden synchronisation is an error, and one while the device is busy with something else."""
    kind = ("group losses and counts" if grouped else "losses") + ("" if store == "device" else f", {store}")
    step, stream = stepper(task, grouped=grouped, store=store), Stream(task)
    for batch in stream.take(12):
        step(batch)
    batches = stream.take(steps)
    torch.cuda.synchronize(task.device)
    found, note = 0.0, f"{steps} steps under set_sync_debug_mode('error')"
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            step(batch)
    except RuntimeError as error:
        found, note = 1.0, str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    yield Row(task.title, f"host synchronisations, {kind}", found, found, found, "", at_most=0.0, note=note)

    # The host must have handed a whole step over long before a device that is busy comes to it.
    torch.cuda.synchronize(task.device)
    started = time.perf_counter()
    torch.cuda._sleep(500_000_000)
    step(batches[0])
    handed_over = time.perf_counter() - started
    torch.cuda.synchronize(task.device)
    done = time.perf_counter() - started
    share = handed_over / done
    note = f"handed over after {1e3 * handed_over:.1f} ms, done after {1e3 * done:.0f} ms"
    yield Row(task.title, f"share of waiting, {kind}", share, share, share, "", at_most=0.5, note=note)


def late_archive(task: Task, steps: int = 200, store: Store = "device") -> Row:
    """One trajectory, recorded by the shell (late) and by an archive on the device that writes at once."""
    model, optimizer = task.build()
    mol = eq.MultiObjective(model, optimizer, [1.0 / task.m] * task.m, method=(eq.OMD(), ARCHIVE), store=store)
    params = dict(model.named_parameters())
    now = Archive(ARCHIVE, params, torch.zeros(task.m), open_slots("device", params, SLOTS), task.device)
    for batch in Stream(task).take(steps):
        f = losses(model, batch, task.m)
        mol(f).backward()
        with torch.no_grad():
            now.hold(params)
            now.commit(f.detach().cpu())
        optimizer.step()
        optimizer.zero_grad()
    ours, theirs = mol.state_dict()["tensors"], flatten(now.state())
    different = [k for k, tensor in theirs.items() if not torch.equal(tensor, ours[f"conversion.{k}"].to(tensor))]
    value, note = float(len(different)), f"of {len(theirs)} after {steps} steps {different or ''}"
    name = f"tensors in which a late archive differs, {store}"
    return Row(task.title, name, value, value, value, "", at_most=0.0, note=note)


def deferred_error(task: Task) -> Row:
    """A NaN in step 21 is raised by the call after it, and nothing of it was committed."""
    model, optimizer = task.build()
    mol = eq.MultiObjective(model, optimizer, [1.0 / task.m] * task.m, method=(eq.OMD(), ARCHIVE))
    stream, factor = Stream(task), torch.ones(task.m, device=task.device)

    def step() -> None:
        mol(losses(model, stream.take(1)[0], task.m) * factor).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step()
    kept = ("weighting.", "conversion.")
    before = {k: tensor.clone() for k, tensor in mol.state_dict()["tensors"].items() if k.startswith(kept)}
    factor[3] = torch.nan
    step()
    message = "nothing was raised"
    try:
        step()
    except NonFiniteLossError as error:
        message = str(error)
    after = mol.state_dict()["tensors"]
    changed = [k for k, tensor in before.items() if not torch.equal(tensor, after[k])]
    value, note = float(("for objective 3 in step 21" not in message) + len(changed)), f"{message} {changed or ''}"
    return Row(task.title, "spoilt by a NaN that is seen late", value, value, value, "", at_most=0.0, note=note)


# ------------------------------------------------------------------------------- where the copies live
def held_on_device(task: Task, store: Store) -> float:
    """Copies of the parameters that a shell adds to the memory of its CUDA device, between two steps."""
    gc.collect()
    model, optimizer = task.build()
    stream = Stream(task)
    size = sum(p.numel() * p.element_size() for p in model.parameters())

    def step(mol: eq.MultiObjective | None) -> None:
        f = losses(model, stream.take(1)[0], task.m)
        (f.mean() if mol is None else mol(f)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(None)
    torch.cuda.synchronize(task.device)
    before = torch.cuda.memory_allocated(task.device)
    mol = eq.MultiObjective(model, optimizer, [1.0 / task.m] * task.m, method=(eq.OMD(), ARCHIVE), store=store)
    for _ in range(12):
        step(mol)
    torch.cuda.synchronize(task.device)
    return (torch.cuda.memory_allocated(task.device) - before) / size


def host_share(step: Step, task: Task) -> Row:
    """How long the host takes to hand over two steps, in parts of the time until they are done.

    Two, since a host that is further ahead is made to wait.
    """
    shares = []
    for batches in (Stream(task).take(2) for _ in range(7)):
        began = clock(task.device)
        for batch in batches:
            step(batch)
        handed_over = time.perf_counter()
        shares.append((handed_over - began) / (clock(task.device) - began))
    middle = statistics.median(shares)
    note = "the step waits for the host" if middle > HOST_BOUND else ""
    return Row(task.title, "LS: the host's part", middle, min(shares), max(shares), "", note=note)


def stores_on_cuda(task: Task, rounds: int) -> Iterator[Row]:
    """Host against device: memory of the device, and time."""
    cases: list[tuple[Store, float | None]] = [("device", None), ("host", 0.05)]
    for store, allowed in cases:
        added = held_on_device(task, store)
        yield Row(task.title, f"added on the device, {store}", added, added, added, "copies", at_most=allowed)
    steps = {store: shell(task, eq.OMD("adaptive"), ARCHIVE, store) for store in ("device", "host")}
    steps["LS"] = linear(task)
    take_turns(steps, task, 4, BLOCK)
    yield host_share(steps["LS"], task)
    times = take_turns(steps, task, rounds, BLOCK)
    for ours, base, limit in (("device", "LS", None), ("host", "LS", None), ("host", "device", 1.05)):
        yield ratio(task, f"step, {ours} over {base}", times[ours], times[base], limit)


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def folder_memory(slots: int) -> Iterator[Row]:
    """Peak memory of a run with its copies in a folder, in copies of the parameters: recording, then everything."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    size, peak, stop = 4 * sum(p.numel() for p in model.parameters()), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.001):
            peak = max(peak, anonymous_bytes())

    with tempfile.TemporaryDirectory() as folder:
        conversion = eq.Adaptive(capacity=slots)
        mol = eq.MultiObjective(model, None, [0.5, 0.5], method=(eq.Linear(), conversion), store=Path(folder) / "store")
        start, thread = anonymous_bytes(), threading.Thread(target=watch)
        thread.start()
        for step in range(slots + 8):
            along = torch.rand((), generator=torch.Generator().manual_seed(step))
            mol.record(torch.stack([along, 1 - along]))  # no iterate dominates another
        assert mol.metrics()["archive"] == slots
        recording = (peak - start) / size
        mol.solution()
        eq.train.save(mol.state_dict(), Path(folder) / "run.pt")
        stop.set()
        thread.join()
        mol.close()
    title, everything = f"8 × 1024², {size / 1e6:.0f} MB, folder", (peak - start) / size
    yield Row(title, f"memory, recording, K = {slots}", recording, recording, recording, "copies", at_most=1.0)
    name = f"memory, with solution and checkpoint, K = {slots}"
    yield Row(title, name, everything, everything, everything, "copies", at_most=2.5)


def measure_stores(device: torch.device, *, quick: bool, only: str) -> Iterator[Row]:
    if device.type == "cpu":
        for slots in () if only else (4, 16):
            yield from folder_memory(slots)
        return
    if not only:
        yield from no_synchronisation(residual(device, 13), grouped=False, store="host")
        yield late_archive(fully_connected(device, 10, 8), store="host")
    for task in residuals(device):
        if only in task.title:
            yield from stores_on_cuda(task, 20 if quick else 60)


# ------------------------------------------------------------------------------- the table
class Plan(NamedTuple):
    """What `cost` is told about a task."""

    task: Task
    claims: Claims
    rounds: int
    slow: int
    """Rounds of candidates with a backward pass per objective; none: such candidates are left out."""


def measure(device: torch.device, *, quick: bool, only: str) -> Iterator[Row]:
    steps = 1_000 if quick else 10_000
    if device.type == "cpu":
        sizes = ((2, 1.20, 400, 40), (10, 1.10, 100, 10), (40, 1.03, 30, 3))
        plans = [
            Plan(
                fully_connected(device, m, 64),
                {"equipoise": most, OVER: 1.02},
                rounds // 5 if quick else rounds,
                int(quick) or slow,
            )
            for m, most, rounds, slow in sizes
        ]
        plans += [] if quick else [Plan(residual(device, 13), {"equipoise": 1.03, OURS: 1.03}, 7, 0)]
    else:
        rounds = 20 if quick else 60
        first, *others = residuals(device)
        plans = [Plan(first, {"equipoise": 1.03}, rounds, 0 if quick else 3)]
        plans += [Plan(other, {"equipoise": 1.015, OURS: 1.02}, rounds, 0) for other in others]
        plans += [Plan(fully_connected(device, 10, 64), {"equipoise": 1.25}, rounds, 0)]
        if not only:
            yield from no_synchronisation(residual(device, 13), grouped=False)
            yield from no_synchronisation(residual(device, 13), grouped=True)
            yield late_archive(fully_connected(device, 10, 8))
            yield deferred_error(fully_connected(device, 10, 8))
    for plan in plans:
        if only in plan.task.title:
            yield from cost(*plan)
    if not only:
        yield from memory(device, steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; no ResNet-18 on the CPU")
    parser.add_argument("--only", default="", help="times alone, of the tasks whose title has this text in it")
    parser.add_argument("--store", choices=["device", "host"], default="device", help="host: compare the stores")
    parser.add_argument("--after", action="store_true", help="measure after another training in the same process")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    device = torch.empty(0, device=args.device).device
    if device.type == "cpu":
        torch.set_num_threads(1)
    began, rows = time.perf_counter(), []
    where = "1 thread" if device.type == "cpu" else torch.cuda.get_device_name(device)
    print(f"torch {torch.__version__}, {where}, load {os.getloadavg()[0]:.1f}")
    if args.after:
        other = stepper(fully_connected(device, 10, 8), grouped=True)
        for batch in Stream(fully_connected(device, 10, 8)).take(200):
            other(batch)
    task = ""
    measured = measure if args.store == "device" else measure_stores
    for row in measured(device, quick=args.quick, only=args.only):
        rows.append(row)
        if row.task != task:
            task = row.task
            print(f"\n{task}")
        claim = "" if row.at_most is None else f"≤ {row.at_most:g}"
        spread = f"{row.low:.4g} – {row.high:.4g}"
        value = f"{row.measured:.4g} {row.unit}"
        line = f"  {row.name:<48}{value:>14}{spread:>20}{claim:>9}  {row.verdict:<5}{row.note}"
        print(line.rstrip(), flush=True)
    if not rows:
        parser.error(f"--only must be in the title of a task; found {args.only!r}")
    missed = [f"{row.task}: {row.name}" for row in rows if row.verdict == "FAIL"]
    print(f"\n{len(missed)} claims missed; {time.perf_counter() - began:.0f} s")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "torch": torch.__version__,
            "where": where,
            "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
        }
        args.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
