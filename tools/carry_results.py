"""Carry stored runs over to newer revisions of the classes that made them:

    python tools/carry_results.py src/equipoise/experiments/published.jsonl.xz

Revision 6 of SelfTuned differs from the one before where a full floor has not ended by step 50, where one gain starts
more than twelve times as large as another, and in trials, which begin after step 300. Federated runs with equal weights
in which none of this happened are the same and are carried over. The others are left out, to be made again.
"""  # noqa: D415

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.experiments.results import Cell, cells_in, pack

REVISIONS = {"SelfTuned": (5, eq.SelfTuned.revision)}
"""By class: the revision that is carried over, and the one it is carried to."""
CARRIED = "from an earlier revision: the same run, as it has equal weights, and no full floor from round 50 on"


def is_same(cell: Cell) -> bool:
    """Whether it is a federated run with equal weights, in which nothing new applies."""
    task = cell.spec.get("task")
    if not isinstance(task, dict) or "preference" in cell.spec or task.get("rounds", 301) > 300:
        return False
    first = cell.result["untrained"]["client_losses"]
    return max(first) <= 12 * min(first) and (task["rounds"] < 50 or has_faded(cell))


def has_faded(cell: Cell) -> bool:
    """Whether several weights were between 0 and 0.9/m before round 50. Weights are kept of every fifth round."""
    early = cell.result["coefficients"][: 49 // cell.spec["every"]]
    return any(sum(0 < x < 0.9 / len(weights) for x in weights) > 1 for weights in early)


def renewed(part: Any) -> Any:
    """The description of a weighting or conversion, with its new revision."""
    if not isinstance(part, dict) or part.get("class") not in REVISIONS:
        return part
    before, after = REVISIONS[part["class"]]
    return {**part, "revision": after} if part.get("revision", 1) == before else part


def carried(cell: Cell) -> Cell | None:
    """The cell under its new description; None if it must be made again."""
    spec = {name: renewed(part) for name, part in cell.spec.items()}
    if spec == cell.spec:
        return cell
    return cell._replace(spec=spec, made={**cell.made, "carried": CARRIED}) if is_same(cell) else None


def main() -> None:
    file = Path(sys.argv[1])
    after = [(cell, carried(cell)) for cell in cells_in([file])]
    pack([new for _, new in after if new is not None], file)
    fates = {"carried": lambda old, new: new is not None and new is not old, "left out": lambda _, new: new is None}
    for fate, applies in fates.items():
        tasks = Counter(old.names.get("task", "") for old, new in after if applies(old, new))
        print(f"{fate}: {sum(tasks.values())}", dict(tasks))


if __name__ == "__main__":
    main()
