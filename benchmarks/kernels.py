"""Speed of the kernels, as ratios that hold on any machine: `make bench`.

The two sides of a ratio take turns within one run; what is reported is the ratio of the medians, with
the quartiles of the single rounds beside it. All times are processor times of one thread: on a busy
machine a longer call is interrupted more often than a shorter one, and wall times would measure how
busy it is. What the targets are about is given in wall time too, as a note.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise.conversion import Ledger


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was measured.
        measured: The value.
        low: Lower quartile over the rounds.
        high: Upper quartile.
        unit: "×" for a ratio, else a time.
        at_least: The target, if it is a lower bound.
        at_most: The target, if it is an upper bound.
        note: The two sides of a ratio and its value in wall time, or the size of what was measured.
    """

    name: str
    measured: float
    low: float
    high: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def target(self) -> str:
        """The bound as it stands in the table; empty without one."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}"

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty without a target."""
        if self.at_least is None and self.at_most is None:
            return ""
        above = self.at_least is None or self.measured >= self.at_least
        below = self.at_most is None or self.measured <= self.at_most
        return "PASS" if above and below else "FAIL"


# ------------------------------------------------------------------------------- measuring
def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = torch.tensor(values, dtype=torch.float64).quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    )
    return low.item(), middle.item(), high.item()


def both_clocks(call: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall time of one call, in seconds."""
    wall, processor = time.perf_counter(), time.thread_time()
    call()
    return time.thread_time() - processor, time.perf_counter() - wall


def ratio(name: str, over: Callable[[], object], under: Callable[[], object], rounds: int, **target: float) -> Row:
    """Processor time of `over` in units of that of `under`, the two taking turns."""
    over(), under()
    pairs = torch.tensor([(both_clocks(over), both_clocks(under)) for _ in range(rounds)], dtype=torch.float64)
    (top, top_wall), (bottom, bottom_wall) = pairs.quantile(0.5, dim=0).tolist()
    low, _, high = quartiles((pairs[:, 0, 0] / pairs[:, 1, 0]).tolist())
    note = f"{1e3 * top:.3g} / {1e3 * bottom:.3g} ms; wall {top_wall / bottom_wall:.3g} ×"
    return Row(name, top / bottom, low, high, "×", note=note, **target)


def cost(name: str, call: Callable[[], object], rounds: int = 300) -> Row:
    """Microseconds of one call."""
    for _ in range(20):
        call()
    low, middle, high = quartiles([1e6 * both_clocks(call)[0] for _ in range(rounds)])
    return Row(name, middle, low, high, "µs")


# ------------------------------------------------------------------------------- what is measured
def projection() -> Iterator[Row]:
    x = torch.randn(10_000, 10, dtype=torch.float64)

    def row_by_row() -> None:
        for row in x:
            eq.simplex.project(row)

    yield ratio(
        "project (10000, 10): row by row / batched", row_by_row, lambda: eq.simplex.project(x), rounds=5, at_least=50
    )


def step(weighting: eq.Weighting[Any], pool: list[Tensor]) -> Callable[[], None]:
    """One `update` per call, the state carried on, with losses from the pool in turn."""
    m = pool[0].shape[-1]
    preference = torch.full((m,), 1.0 / m)
    state = weighting.init(pool[0])
    turn = count()

    def call() -> None:
        nonlocal state
        _, state = weighting.update(pool[next(turn) % len(pool)], state, preference)

    return call


def million_objectives() -> Iterator[Row]:
    pool = [torch.rand(1_000_000) for _ in range(4)]
    turn = count()

    def log_softmax() -> Tensor:
        return torch.log_softmax(pool[next(turn) % len(pool)], -1)

    def sort() -> Tensor:
        return torch.sort(pool[next(turn) % len(pool)]).values

    entropic, euclidean = eq.OMD(step_size=1.0, mirror=eq.Entropic()), eq.OMD(step_size=1.0, mirror=eq.Euclidean())
    yield ratio("OMD, Entropic, m = 10⁶ / log_softmax", step(entropic, pool), log_softmax, 300, at_most=8)
    yield ratio("OMD, Euclidean, m = 10⁶ / sort", step(euclidean, pool), sort, 15, at_most=2)
    lazy, greedy = eq.OMD(mirror=eq.Entropic()), eq.OMD(mirror=eq.Euclidean())
    yield ratio("the same, Entropic, adaptive step", step(lazy, pool), log_softmax, 300)
    yield ratio("the same, Euclidean, adaptive step", step(greedy, pool), sort, 15)


def adaptive(capacity: int | None, rounds: int = 3, steps: int = 1000, last: int = 100) -> Row:
    """The last steps of a trajectory along a front, which no iterate leaves by dominance."""
    batch, d = 30, 10
    conversion = eq.Adaptive(capacity=capacity)
    times, walls, size = [], [], 0
    for _ in range(rounds):
        first = torch.rand(steps, batch, dtype=torch.float64)
        losses = torch.stack([first, 1.0 - first], -1)
        theta = torch.rand(steps, batch, d, dtype=torch.float64)
        state = conversion.init({"theta": theta[0]}, losses[0])
        for t in range(steps):
            wall, processor = time.perf_counter(), time.thread_time()
            state = conversion.update({"theta": theta[t]}, losses[t], state)
            if t >= steps - last:
                times.append(1e3 * (time.thread_time() - processor))
                walls.append(1e3 * (time.perf_counter() - wall))
        size = int(conversion.size(state).max())
    low, middle, high = quartiles(times)
    name = f"Adaptive(capacity={capacity}), 30 problems, m = 2, d = 10"
    return Row(name, middle, low, high, "ms", at_most=1.0, note=f"{size} members; wall {quartiles(walls)[1]:.3g} ms")


def single_updates() -> Iterator[Row]:
    by_weighting: dict[eq.Weighting[Any], list[str]] = {}
    for name, method in eq.methods().items():
        by_weighting.setdefault(method.weighting, []).append(name)
    for weighting, names in by_weighting.items():
        if weighting.needs:
            continue
        for m in (2, 10):
            pool = [torch.rand(m) for _ in range(4)]
            yield cost(f"update, m = {m}: {', '.join(names)}", step(weighting, pool))


def ledger() -> Row:
    book, losses = Ledger(capacity=8), torch.rand(400, 10)
    state = book.init(losses[0])
    turn = count()

    def call() -> None:
        nonlocal state
        _, state = book.update(losses[next(turn) % len(losses)], state)

    return cost("Ledger(capacity=8).update, m = 10", call)


def measure() -> Iterator[Row]:
    yield from projection()
    yield from million_objectives()
    for capacity in (None, 8, 32):
        yield adaptive(capacity)
    yield from single_updates()
    yield ledger()


# ------------------------------------------------------------------------------- the table
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start, rows = time.perf_counter(), []
    # Where glibc returns freed memory to the system at once, a step on a million objectives is mostly page faults.
    allocator = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, load {os.getloadavg()[0]:.1f}, {allocator}")
    print(f"{'':<70}{'target':>9}{'measured':>12}{'quartiles':>18}")
    for row in measure():
        rows.append(row)
        spread = f"{row.low:.3g} – {row.high:.3g}"
        value = f"{row.measured:.3g} {row.unit}"
        print(f"{row.name:<70}{row.target:>9}{value:>12}{spread:>18}  {row.verdict:<5}{row.note}".rstrip())
    failed = [row.name for row in rows if row.verdict == "FAIL"]
    print(f"{len(failed)} failed; {time.perf_counter() - start:.0f} s")
    if args.json:
        table = [asdict(row) | {"target": row.target, "verdict": row.verdict} for row in rows]
        args.json.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
