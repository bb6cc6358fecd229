"""What the bench writes down: the losses of every answer, a line for each row and column."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

Numbers = list[list[list[float]]]
"""Losses by seed, preference and objective."""


@dataclass(frozen=True)
class Record:
    """The answers of one method (a column) on one row.

    Attributes:
        part: "synthetic", "networks" or "federated".
        half: "chosen" or "held-out".
        problem: The problem or task.
        setting: The rest of the row's name, such as noise and optimizer.
        steps: Iterates.
        column: The method's name.
        seeds: One each along the first dimension of the losses.
        preferences: The preferences, one each along the second.
        train: Exact losses of the answers, or those on all training data.
        test: Those on test data; empty if there is none.
        exact: The least value of max_i w_i f_i for every preference, where it is known; else empty.
        judged: The preferences whose ray meets the front, so that the imbalance says something.
        accuracy: Test accuracy of the worst group by seed, where that is what people look at; else empty.
        seconds: What the run took, shared by all columns that ran with it.
    """

    part: str
    half: str
    problem: str
    setting: str
    steps: int
    column: str
    seeds: tuple[int, ...]
    preferences: list[list[float]]
    train: Numbers
    test: Numbers
    exact: list[float]
    judged: list[int]
    accuracy: list[float]
    seconds: float

    @property
    def row(self) -> str:
        """The row's name."""
        return f"{self.problem} {self.setting} T={self.steps}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is the record of."""
        return self.half, self.row, self.column


def numbers(losses: Tensor) -> Numbers:
    """Seven digits of (seeds, preferences, m); what is not finite becomes 1e30, so that the file stays JSON."""
    finite = losses.double().nan_to_num(1e30, 1e30, -1e30).cpu()
    found: Numbers = [[[float(f"{value:.7g}") for value in point] for point in seed] for seed in finite.tolist()]
    return found


def read(*files: Path) -> list[Record]:
    """All records of some files; of several with one key the last."""
    found: dict[tuple[str, str, str], Record] = {}
    for file in files:
        if file.exists():
            for line in file.read_text().splitlines():
                if not line.endswith("}"):  # cut off by an interruption
                    continue
                fields = json.loads(line)
                record = Record(**{**fields, "seeds": tuple(fields["seeds"])})
                found[record.key] = record
    return list(found.values())


def append(file: Path, records: Iterable[Record]) -> None:
    """Add records to a file, a line each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+") as lines:
        lines.seek(0)
        if (before := lines.read()) and not before.endswith("\n"):
            lines.write("\n")
        lines.writelines(json.dumps(asdict(record), separators=(",", ":")) + "\n" for record in records)
