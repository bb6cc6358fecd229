"""VLMOP2 for ten preferences: OMD-TCH with PGD and EG, with and without optimism, and the library's default.

The default is `SelfTuned` with the answer of `Suffix`. EG with optimism has a floor on λ.

Prints the weighted losses w∘f of every solution, which are equal where the preference is met, and
draws the front with the preference rays.

    python examples/vlmop2.py --out out/demo
"""

import argparse
from pathlib import Path

import torch

import equipoise as eq
from equipoise import metrics
from equipoise.experiments.drawing import save
from equipoise.experiments.synthetic.figures import front_grid
from equipoise.problems import VLMOP2
from equipoise.solver import Run, solve_many

RUNS = {
    "PGD": eq.OMD(1.0, eq.Euclidean()),
    "PGD, optimism 20": eq.OMD(1.0, eq.Euclidean(), optimism=20.0),
    "EG": eq.OMD(1.0, eq.Entropic()),
    "EG, optimism 50": eq.OMD(1.0, eq.Entropic(floor=0.01), optimism=50.0),
    "SelfTuned": eq.SelfTuned(),
}
OUTPUTS = {"last": eq.Last(), "uniform": eq.Average(), "adaptive": eq.Adaptive(), "suffix": eq.Suffix()}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    problem, w = VLMOP2(), eq.preference.linspace(10)
    runs = {name: Run(weighting, OUTPUTS) for name, weighting in RUNS.items()}
    found = solve_many(problem, w, runs, seeds=(0, 19, 42))

    print("w₁      " + "".join(f"{name:>20}" for name in RUNS) + "       exact")
    print("weighted losses w₁f₁, w₂f₂ of the last iterate, seed 0")
    exact = w * problem.solution(w)
    for k, weight in enumerate(w):
        values = [weight * found[name].losses["last"][0, k].double() for name in RUNS]
        cells = "".join(f"{v[0]:>12.4f}{v[1]:>8.4f}" for v in values)
        print(f"{weight[0]:.4f}  {cells}{exact[k, 0]:>12.4f}")

    print("\nhypervolume (exact 0.2952), mean over three seeds; median of largest/smallest w_i f_i − 1")
    print(f"{'':20}" + "".join(f"{name:>20}" for name in OUTPUTS))
    for name in RUNS:
        cells = ""
        for output in OUTPUTS:
            losses = found[name].losses[output].double()
            volume = metrics.hypervolume(losses, problem.reference).mean()
            cells += f"{volume:>11.4f}{metrics.imbalance(losses, w).quantile(0.5):>9.2%}"
        print(f"{name:20}{cells}")

    panels = [
        [(problem, f"{name}: {output}", found[name].losses[output].double()) for name in RUNS]
        for output in ("last", "adaptive", "suffix")
    ]
    paths = save(front_grid(panels, w), out, "vlmop2")
    print("wrote " + ", ".join(map(str, paths)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the picture")
    main(parser.parse_args().out)
