"""Short runs: what the default gains when it knows the length of the run, `eq.default(steps=...)`.

    python benchmarks/short_runs.py    # some ten minutes on one core

Small networks with mini-batches, as in `benchmarks.defaults`: the largest weighted training loss over that of a
weighted sum, mean over preferences and four seeds, and in how many runs the weighted sum is lower in every loss. Ten
federated clients with digits: the largest test loss of a client, mean over three seeds. The third was chosen among a
third, a fifth and 0 on the seeds 11 to 14 and 0 to 2; these are others.
"""

import torch
from benchmarks.defaults import networks

import equipoise as eq
from equipoise import federated, metrics

SEEDS, CLIENT_SEEDS = (15, 16, 17, 18), (3, 4, 5)
SPLITS: dict[str, federated.Split] = {
    "two classes per client": federated.PartialClass(clients=10, classes=2),
    "three clients rotated": federated.Rotation((0, 0, 0, 0, 0, 0, 0, 1, 1, 2)),
}
AHEAD = 0.99
"""A weighted sum is lower in a loss if it is below this share of it."""


def methods(steps: int) -> dict[str, eq.Method]:
    """The columns, LS first."""
    own = {"default": eq.default(), "with steps=": eq.default(steps=steps), "youth=0": eq.default(youth=0)}
    return {"LS": eq.methods()["LS"], **own}


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def on_networks(task: str, steps: int) -> None:
    """A row per optimizer."""
    columns = methods(steps)
    found: dict[str, dict[str, list[torch.Tensor]]] = {}
    for record in networks.run(task, columns, seeds=SEEDS, steps=steps):
        w, f = (torch.tensor(x, dtype=torch.float64) for x in (record.preferences, record.train))
        optimizer = record.setting.split(" w=")[0]
        found.setdefault(optimizer, {}).setdefault(record.column, []).append(torch.stack((w.expand_as(f), f)))
    for optimizer, by_column in found.items():
        (w, base), *others = (torch.cat(by_column[name], 1) for name in columns)
        lowest = (w * base).amax(-1).mean()
        cells = []
        for _, f in others:
            behind = int((base < AHEAD * f).all(-1).sum())
            cells.append(f"{float((w * f).amax(-1).mean() / lowest):.2f} ({behind} of {f[..., 0].numel()})")
        row(f"{task}, {optimizer}", steps, 1, *cells)


def on_clients(split: str, rounds: int) -> None:
    """One row."""
    task, cells = federated.Task(split=SPLITS[split], rounds=rounds), []
    for name, method in methods(rounds).items():
        found = federated.simulate(task, method, seeds=CLIENT_SEEDS)
        losses = found.test["last" if name == "LS" else "own"].losses
        cells.append(f"{float(metrics.agnostic_loss(losses).mean()):.3f}")
    row(split, rounds, *cells)


def main() -> None:
    torch.set_num_threads(1)
    row("task", "steps or rounds", *methods(3))
    row(*["---"] * 6)
    for steps in (200, 400):
        for task in ("4 units", "2 units", "digits MLP", "coloured"):
            on_networks(task, steps)
    for rounds in (20, 60, 200):
        for split in SPLITS:
            on_clients(split, rounds)


if __name__ == "__main__":
    main()
