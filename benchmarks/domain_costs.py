"""What drawn batches and losses by domain cost a step, against a plain loader and a plain mean in the same run.

    PYTHONPATH=src:. python benchmarks/domain_costs.py [--check] [--quick] [--json FILE]
    PYTHONPATH=src:. python benchmarks/domain_costs.py --device cuda [--check] [--json FILE]    # some 100 s

The language model of `examples/languages.py`, with 11 and with 50 million parameters on a CUDA device and a tiny one on
the CPU, reads windows of random bytes of six domains. Needs torch and numpy only. Five candidates, each with its own
model, optimizer and loader:

    plain                 batches in random order, their mean loss
    plain again           the same: how far two equal loops differ
    sampler               batches of `DomainSampler`, their mean loss
    sampler and losses    the same batches, the mean over the domains of `token_losses`: the claim, at most 1.02
    default, drawn        the same with `MultiObjective` and its default method: what the method and its archive add

They take turns of some steps. The first steps of a turn are not timed, so that workers have refilled what they fetch
ahead, and after a turn its workers get time to finish: all work of a step falls within its own turn. A ratio is the
median over the turns of the time over that of `plain` in the same round, with the least and the largest. On a CUDA
device it is wall time, with four workers and pinned memory; on the CPU processor time of one thread without workers.

On a CUDA device, "the host's part" is the share of two steps' time that the host needs to hand them over. Near 1 the
step waits for the host, and all that the host does more is seen in full. `--check` exits with 1 if a claim is missed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from examples.languages import SIZES, Reader, Size, Text, Windows
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

import equipoise as eq

WINDOWS = (17118, 8544, 19261, 6284, 6127, 4166)
"""Of the domains: those of the example."""
M = len(WINDOWS)
CANDIDATES = ("plain", "plain again", "sampler", "sampler and losses", "default, drawn")
CLAIM = {"sampler and losses": 1.02}
HOST_BOUND = 0.9
"""Beyond this part of a step's time the device has idle moments."""
SETTLE = 0.05
"""Seconds after a turn in which its workers finish."""
ENDLESS = 10**6
"""Steps of an epoch."""

Step = Callable[[], None]


@dataclass(frozen=True)
class Plan:
    """What is measured of a model: at least three rounds, and as many as fit into the seconds."""

    size: Size
    untimed: int
    """Steps at the start of a turn."""
    timed: int
    """Steps after them."""
    seconds: float


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    name: str
    measured: float
    low: float
    high: float
    at_most: float | None = None
    milliseconds: float | None = None
    """The median time of a step."""

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty without a claim."""
        if self.at_most is None:
            return ""
        return "PASS" if self.measured <= self.at_most else "FAIL"


def random_text(context: int, windows: tuple[int, ...]) -> Text:
    """Bytes of domains whose alphabets differ in size, so that their losses differ."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(n, context + 1) for n in windows]
    parts = [torch.randint(24 + 40 * k, s, generator=generator, dtype=torch.uint8) for k, s in enumerate(shapes)]
    return Text(torch.cat(parts), torch.repeat_interleave(torch.arange(len(windows)), torch.tensor(windows)))


# ------------------------------------------------------------------------------- candidates
class Candidate:
    """A loop whose steps are taken one by one."""

    def __init__(self, name: str, size: Size, text: Text, device: torch.device, workers: int) -> None:
        torch.manual_seed(0)
        self.size, self.device, self.on_cuda = size, device, device.type == "cuda"
        self.model = Reader(size).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=self.on_cuda)
        self.sampler = (
            None if name.startswith("plain") else eq.DomainSampler(text.languages, size.windows, steps=ENDLESS)
        )
        self.by_domain = name in {"sampler and losses", "default, drawn"}
        self.mol = eq.MultiObjective(self.model, self.optimizer, [1 / M] * M) if name == "default, drawn" else None
        self.even = torch.ones(M)
        self.batches = self._batches(Windows(text), workers)

    def _batches(self, data: Windows, workers: int) -> Iterator[tuple[Tensor, eq.train.Draw | None]]:
        """Windows and draws on the device; as in the example."""
        how: dict[str, Any] = {"num_workers": workers, "pin_memory": self.on_cuda}
        if self.sampler is None:
            order = RandomSampler(data, num_samples=ENDLESS * self.size.windows)
            for windows in DataLoader(data, self.size.windows, sampler=order, **how):
                yield windows.to(self.device, non_blocking=True).long(), None
            return
        for windows, draw in DataLoader(self.sampler.with_draws(data), batch_sampler=self.sampler, **how):
            moved = [x.to(self.device, non_blocking=True) for x in draw]
            yield windows.to(self.device, non_blocking=True).long(), eq.train.Draw(*moved)

    def step(self) -> None:
        """Fetch a batch and train on it."""
        self.train(*next(self.batches))

    def train(self, text: Tensor, draw: eq.train.Draw | None) -> None:
        """One step on a batch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_cuda):
            logits = self.model(text[:, :-1])
        if self.by_domain and draw is not None:
            f, n = eq.token_losses(logits, text[:, 1:], draw.domain, M, weights=draw.weight)
            loss = f.mean() if self.mol is None else self.mol(f, n)
        else:
            loss = cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        if self.sampler is not None:
            self.sampler.follow(self.even if self.mol is None else self.mol)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self) -> None:
        """End its workers."""
        del self.batches
        if self.mol is not None:
            self.mol.close()


# ------------------------------------------------------------------------------- measuring
def clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def turn(candidate: Candidate, plan: Plan) -> float:
    """Seconds a step."""
    for _ in range(plan.untimed):
        candidate.step()
    began = clock(candidate.device)
    for _ in range(plan.timed):
        candidate.step()
    found = (clock(candidate.device) - began) / plan.timed
    if candidate.on_cuda:
        time.sleep(SETTLE)
    return found


def host_part(candidate: Candidate) -> tuple[float, float, float]:
    """How long the host takes to hand two steps over, in parts of the time until they are done: middle and range."""
    shares = []
    for _ in range(7):
        batches = [next(candidate.batches) for _ in range(2)]
        began = clock(candidate.device)
        for batch in batches:
            candidate.train(*batch)
        handed_over = time.perf_counter()
        shares.append((handed_over - began) / (clock(candidate.device) - began))
    return statistics.median(shares), min(shares), max(shares)


def measure(plan: Plan, device: torch.device, workers: int) -> tuple[list[Row], dict[str, list[float]]]:
    """The rows of a model, and the milliseconds of all turns."""
    text = random_text(plan.size.context, WINDOWS)
    candidates = {name: Candidate(name, plan.size, text, device, workers) for name in CANDIDATES}
    numbers = sum(p.numel() for p in candidates["plain"].model.parameters())
    model = f"{numbers / 1e6:.1f} million parameters"
    for one in candidates.values():
        turn(one, plan)
    shown = ("plain", "sampler and losses") if device.type == "cuda" else ()
    rows = [Row(model, f"{name}: the host's part", *host_part(candidates[name])) for name in shown]
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    began, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - began < plan.seconds:
        first = rounds % len(CANDIDATES)
        for name in CANDIDATES[first:] + CANDIDATES[:first]:
            times[name].append(1e3 * turn(candidates[name], plan))
        rounds += 1
    for name, found in times.items():
        ratios = [ours / plain for ours, plain in zip(found, times["plain"], strict=True)]
        middle = statistics.median(ratios), min(ratios), max(ratios)
        rows.append(Row(model, name, *middle, at_most=CLAIM.get(name), milliseconds=statistics.median(found)))
    for one in candidates.values():
        one.close()
    return rows, times


def plans(device: torch.device, *, quick: bool) -> list[Plan]:
    """What is measured on a device."""
    if device.type == "cpu":
        return [Plan(SIZES["tiny"], 1, 2 if quick else 10, 0.0 if quick else 60.0)]
    seconds = 5.0 if quick else 35.0
    return [Plan(SIZES["small"], 12, 60, seconds), Plan(SIZES["medium"], 10, 30, seconds)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    parser.add_argument("--json", type=Path, help="also write the table and the times of all turns to this file")
    args = parser.parse_args(arguments)
    device = torch.empty(0, device=args.device).device
    workers = 4 if device.type == "cuda" else 0
    if device.type == "cpu":
        torch.set_num_threads(1)
    where = "1 thread" if device.type == "cpu" else torch.cuda.get_device_name(device)
    print(f"torch {torch.__version__}, {where}, {workers} workers, load {os.getloadavg()[0]:.1f}")
    began, rows, times = time.perf_counter(), [], {}
    for plan in plans(device, quick=args.quick):
        found, turns = measure(plan, device, workers)
        print(f"\n{found[0].model}, {len(turns['plain'])} rounds of {plan.timed} steps")
        for row in found:
            took = "" if row.milliseconds is None else f"{row.milliseconds:.4g} ms"
            claim = "" if row.at_most is None else f"≤ {row.at_most:g}  {row.verdict}"
            note = "the step waits for the host" if took == "" and row.measured > HOST_BOUND else ""
            line = f"  {row.name:<36}{row.measured:>8.4f}  {row.low:.4f} – {row.high:.4f}{took:>12}  {claim}{note}"
            print(line.rstrip(), flush=True)
        rows += found
        times[found[0].model] = turns
    missed = [f"{row.model}: {row.name}" for row in rows if row.verdict == "FAIL"]
    print(f"\n{len(missed)} claims missed; {time.perf_counter() - began:.0f} s")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "torch": torch.__version__,
            "where": where,
            "workers": workers,
            "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
            "milliseconds": {
                model: {k: [round(x, 4) for x in t] for k, t in each.items()} for model, each in times.items()
            },
        }
        args.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
