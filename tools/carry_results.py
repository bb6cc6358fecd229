"""Carry the stored runs of SelfTuned over to its revision 2:

    python tools/carry_results.py src/equipoise/experiments/published.jsonl.xz

Revision 2 added a brake and an end of youth after 50 steps. The brake takes 46 steps in a row with λ at a corner, and
youth ends only if losses are still at 95 % of their start. Federated runs whose stored coefficients and losses rule out
both are the same runs: they are carried over. All other cells of revision 1 are left out, to be made again.
"""  # noqa: D415

import statistics
import sys
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path

from equipoise.experiments.federated.settings import EVERY
from equipoise.experiments.results import Cell, cells_in, pack
from equipoise.weighting.self_tuned import CORNER, STALE, WATCH

CARRIED = "from revision 1 of SelfTuned: the same run"


def is_old(cell: Cell) -> bool:
    weighting = cell.spec.get("weighting")
    return isinstance(weighting, dict) and weighting.get("class") == "SelfTuned" and "revision" not in weighting


def is_same(cell: Cell) -> bool:
    """Whether revision 2 gives the same run."""
    if cell.spec["experiment"] != "federated":
        return False
    if cell.spec["task"]["rounds"] <= 46:
        return True
    return not _may_brake(cell) and not _may_end_youth(cell)


def _may_brake(cell: Cell) -> bool:
    """Whether every stored λ of some 46 rounds in a row is at a corner; every fifth round is stored."""
    if "preference" in cell.spec:  # then coefficients are not λ
        return True
    held = [max(c) >= CORNER for c in cell.result["coefficients"]]
    return max((len(list(run)) for corner, run in groupby(held) if corner), default=0) >= 46 // EVERY


def _may_end_youth(cell: Cell) -> bool:
    # Of the worst client, every fifth round: the mean over clients and rounds that the rule looks at is lower still.
    start, curve = min(cell.result["untrained"]["client_losses"]), cell.result["curves"]["last"]
    later = [loss for t, loss in zip(curve["round"], curve["train_loss"], strict=True) if t >= WATCH - EVERY]
    return max(map(statistics.mean, pairwise(later))) >= STALE * start


def carried(cell: Cell) -> Cell | None:
    if not is_old(cell):
        return cell
    if not is_same(cell):
        return None
    weighting = {**cell.spec["weighting"], "revision": 2}
    return cell._replace(spec={**cell.spec, "weighting": weighting}, made={**cell.made, "carried": CARRIED})


def main() -> None:
    file = Path(sys.argv[1])
    before = list(cells_in([file]))
    after = [(cell, carried(cell)) for cell in before]
    pack([new for _, new in after if new is not None], file)
    fates = {"carried": lambda old, new: new is not None and new is not old, "left out": lambda _, new: new is None}
    for fate, applies in fates.items():
        tasks = Counter(old.names.get("task", "") for old, new in after if applies(old, new))
        print(f"{fate}: {sum(tasks.values())}", dict(tasks))


if __name__ == "__main__":
    main()
