"""What `PreferenceStrategy` costs a server, and what many objectives cost.

    python benchmarks/flower.py [--check] overhead [--clients 10 100] [--parameters 10000000]
    python benchmarks/flower.py [--check] weights [--objectives 1000000]
    python benchmarks/flower.py [--check] fleet [--clients 100000] [--rounds 600]

`overhead`: server time per round, `aggregate_train`, against Flower's `FedAvg` in one run: both get the same replies in
turn. The losses are drawn anew in every round, so that no iterate dominates another: the archive of eight copies is
full before anything is measured, and every round merges two copies and writes one, the dearest case. The time is
processor time of one thread, since the machine may be shared; a ratio is one of medians. The checkpoint is timed apart.

`weights`: λ over a million objectives: time and memory of one step of the weighting, and of the archive's ledger.

`fleet`: logistic regression with as many clients, of which one in a hundred takes part in a round, and of which one in
ten has other labels than most: FedAvg against OMD-TCH with inclusion probabilities, by the worst tenth of the clients.
"""

import argparse
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

import equipoise as eq
from equipoise.flower import LocalGrid, PreferenceStrategy
from equipoise.simplex import Box
from equipoise.weighting import Weighting

ALLOWED = 1.3


# ------------------------------------------------------------------------------- overhead
def overhead(clients: int, parameters: int, rounds: int) -> dict[str, float]:
    draws = np.random.default_rng(0)
    width = int(parameters**0.5)
    shapes = {"weight": (width, parameters // width), "bias": (parameters - width * (parameters // width) or 1,)}

    def model() -> ArrayRecord:
        return ArrayRecord({n: Array(draws.standard_normal(shape, dtype=np.float32)) for n, shape in shapes.items()})

    first, models = model(), [model() for _ in range(min(clients, 10))]
    grid = LocalGrid(lambda message, _: message, clients)
    with tempfile.TemporaryDirectory() as folder:
        ours = PreferenceStrategy(
            eq.OMD("adaptive", eq.Entropic()),
            conversion=eq.Adaptive(capacity=8),
            objectives=clients,
            checkpoint=Path(folder),
            min_train_nodes=1,
            min_available_nodes=1,
        )
        theirs = FedAvg()
        spent: dict[str, list[float]] = {"FedAvg": [], "PreferenceStrategy": [], "checkpoint": []}
        arrays = first
        for t in range(1, rounds + 10):
            sent = list(ours.configure_train(t, arrays, ConfigRecord(), grid))
            replies = []
            for k, message in enumerate(sent):
                loss = float(draws.random()) + 0.5
                told = MetricRecord({"partition-id": k, "loss": loss, "num-examples": 100})
                content = RecordDict({"arrays": models[(k + t) % len(models)], "metrics": told})
                replies.append(Message(content, reply_to=message))
            began = time.process_time()
            theirs.aggregate_train(t, replies)
            between, wall, kept = time.process_time(), time.perf_counter(), ours.checkpoint_seconds
            record, _ = ours.aggregate_train(t, replies)
            now, kept = time.process_time(), ours.checkpoint_seconds - kept
            assert record is not None
            arrays = record
            if t >= 10:  # the archive is full
                whole = now - between
                spent["FedAvg"].append(between - began)
                # Processor time of the checkpoint: its share of the wall time.
                spent["PreferenceStrategy"].append(whole * (1 - kept / (time.perf_counter() - wall)))
                spent["checkpoint"].append(kept)
        assert ours._held().archive_size == 8
        found = {name: statistics.median(times) for name, times in spent.items()}
        for name, strategy in (("FedAvg", theirs), ("PreferenceStrategy", ours)):
            tracemalloc.start()
            strategy.aggregate_train(t + 1, replies)
            found[f"{name}, memory"] = tracemalloc.get_traced_memory()[1] / (4 * parameters)
            tracemalloc.stop()
    return found


def report_overhead(arguments: argparse.Namespace) -> bool:
    sound = True
    for clients in arguments.clients:
        found = overhead(clients, arguments.parameters, arguments.rounds)
        ratio = found["PreferenceStrategy"] / found["FedAvg"]
        sound &= ratio <= ALLOWED
        print(
            f"{clients} clients, {arguments.parameters:,} parameters: FedAvg {found['FedAvg']:.3f} s, "
            f"PreferenceStrategy {found['PreferenceStrategy']:.3f} s, ratio {ratio:.2f} (at most {ALLOWED}); "
            f"checkpoint {found['checkpoint']:.3f} s; memory at most {found['FedAvg, memory']:.1f} and "
            f"{found['PreferenceStrategy, memory']:.1f} models beside the replies and the state"
        )
    return sound


# ------------------------------------------------------------------------------- λ
def report_weights(arguments: argparse.Namespace) -> bool:
    m = arguments.objectives
    torch.manual_seed(0)
    losses, w = torch.rand(m), torch.full((m,), 1.0 / m)
    heard = torch.rand(m) < 0.01
    pi = torch.full((m,), 0.01)
    for name, weighting, extra in [
        ("EG, everyone", eq.OMD(m * 0.01, eq.Entropic()), {}),
        ("EG, one in a hundred", eq.OMD(m * 0.01, eq.Entropic()), {"mask": heard, "inclusion": pi}),
        ("PGD, everyone", eq.OMD(m * 0.01, eq.Euclidean()), {}),
    ]:
        state, times = weighting.init(losses), []
        for _ in range(20):
            began = time.process_time()
            _, state = weighting.update(losses, state, w, **extra)
            times.append(time.process_time() - began)
        total = float(weighting.weights(state).double().sum())
        size = sum(t.numel() * t.element_size() for t in state) / 1e6
        took = 1e3 * statistics.median(times)
        print(f"{m:,} objectives, {name}: {took:.1f} ms a step, state {size:.0f} MB, Σλ = {total:.6f}")
    ledger = eq.Adaptive(capacity=8).ledger
    held, times = ledger.init(losses), []
    for _ in range(15):
        began = time.process_time()
        _, held = ledger.update(torch.rand(m), held)
        times.append(time.process_time() - began)
    size = sum(t.numel() * t.element_size() for t in held) / 1e6
    took = 1e3 * statistics.median(times[8:])
    print(f"{m:,} objectives, archive of capacity 8: {took:.0f} ms a round, {size:.0f} MB beside the models")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return True


# ------------------------------------------------------------------------------- a fleet
class Fleet:
    """Logistic regression clients: most share one labelling rule, a tenth has another; ten samples each."""

    def __init__(self, clients: int, features: int = 20, samples: int = 10) -> None:
        draws = torch.Generator().manual_seed(0)
        common, other = torch.randn(2, features, generator=draws)
        # The minority's rule is at an angle to the common one: no linear model serves both well.
        self.minority = torch.rand(clients, generator=draws) < 0.1
        rule = torch.where(self.minority.unsqueeze(-1), common + other, common)
        self.inputs = torch.randn(clients, samples, features, generator=draws)
        self.labels = ((self.inputs * rule.unsqueeze(1)).sum(-1) > 0).float()

    def losses(self, theta: Tensor) -> Tensor:
        """Of every client, for models (features,) or (clients, features)."""
        return self.per_client(theta, slice(None))

    def per_client(self, theta: Tensor, who: Any) -> Tensor:
        """Of some clients."""
        logits = (self.inputs[who] * theta.unsqueeze(-2)).sum(-1)
        return nn.functional.binary_cross_entropy_with_logits(logits, self.labels[who], reduction="none").mean(-1)

    def trained(self, theta: Tensor, who: Tensor, steps: int = 5, eta: float = 0.5) -> tuple[Tensor, Tensor]:
        """The models (k, features) and first losses (k,) of some clients."""
        models = theta.expand(len(who), -1).clone().requires_grad_()
        first = torch.zeros(len(who))
        for step in range(steps):
            losses = self.per_client(models, who)
            first = losses.detach() if step == 0 else first
            [gradient] = torch.autograd.grad(losses.sum(), models)
            models = (models.detach() - eta * gradient).requires_grad_()
        return models.detach(), first


def run_fleet(fleet: Fleet, weighting: Weighting[Any], rounds: int, fraction: float) -> dict[str, Any]:
    m, features = fleet.labels.shape[0], fleet.inputs.shape[-1]
    w, k, pi = torch.full((m,), 1.0 / m), round(fraction * m), torch.full((m,), fraction)
    theta, state, draws = torch.zeros(features), weighting.init(torch.zeros(m)), np.random.default_rng(1)
    tenth, server, curve, last = m // 10, 0.0, {}, torch.full((m,), torch.inf)
    for t in range(rounds + 1):
        if t % max(1, rounds // 6) == 0:
            now = fleet.losses(theta)
            better = float((now <= last).float().mean())
            curve[t] = (
                float(now.mean()),
                float(now.topk(tenth).values.mean()),
                float(now[fleet.minority].mean()),
                better,
            )
            last = now
        who = torch.from_numpy(np.sort(draws.choice(m, k, replace=False)))
        models, first = fleet.trained(theta, who)
        began = time.process_time()
        losses, mask = torch.zeros(m), torch.zeros(m, dtype=torch.bool)
        losses[who], mask[who] = first, True
        c, state = weighting.update(losses, state, w, mask=mask, inclusion=pi)
        c = c * m if weighting.uses_duals else c
        theta = theta + c[who] @ (models - theta)
        server += time.process_time() - began
    return {"curve": curve, "server": server / rounds, "sum": float(c.sum())}


def report_fleet(arguments: argparse.Namespace) -> bool:
    fleet = Fleet(arguments.clients)
    m, sound, worst = arguments.clients, True, {}
    print(f"{m:,} clients, {100 * arguments.fraction:g} % a round")
    print("mean loss, that of the worst tenth and of the minority, share of clients no worse than in the line before")
    # A client that is heard has its gain divided by π: λ_i grows by exp(step·f_i).
    eta = arguments.step * m * arguments.fraction
    methods: dict[str, Weighting[Any]] = {
        "FedAvg": eq.Linear(),
        "OMDeg-TCH": eq.OMD(eta, eq.Entropic()),
        "the same, λ ≤ 10/m": eq.OMD(eta, eq.Entropic(), dual_set=Box(upper=10.0 / m)),
    }
    for name, weighting in methods.items():
        began = time.perf_counter()
        found = run_fleet(fleet, weighting, arguments.rounds, arguments.fraction)
        for t, values in found["curve"].items():
            print(f"  {name:20s} round {t:4d}: " + "  ".join(f"{x:.3f}" for x in values))
        took = time.perf_counter() - began
        print(f"  {name}: {took:.0f} s in all, server {1e3 * found['server']:.2f} ms of processor time a round")
        curve = [values[1] for values in found["curve"].values()]
        worst[name] = curve[-1]
        sound &= name == "FedAvg" or (curve[-1] < curve[0] and curve[-1] < worst["FedAvg"])
    return sound


def main() -> int:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a claim is missed")
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("overhead")
    one.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    one.add_argument("--parameters", type=int, default=10_000_000)
    one.add_argument("--rounds", type=int, default=7)
    one.set_defaults(report=report_overhead)
    two = kinds.add_parser("weights")
    two.add_argument("--objectives", type=int, default=1_000_000)
    two.set_defaults(report=report_weights)
    three = kinds.add_parser("fleet")
    three.add_argument("--clients", type=int, default=100_000)
    three.add_argument("--rounds", type=int, default=600)
    three.add_argument("--fraction", type=float, default=0.01)
    three.add_argument("--step", type=float, default=0.3)
    three.set_defaults(report=report_fleet)
    arguments = parser.parse_args()
    return int(not arguments.report(arguments) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
