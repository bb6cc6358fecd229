"""The core on a CUDA device: the same numbers as on the CPU, no host synchronisation, time a step.

    PYTHONPATH=src python benchmarks/gpu.py --json out/gpu.json

Needs torch and numpy only. Every weighting of the registry and every bounded conversion runs the same trajectory on
both devices; on the CUDA device `torch.cuda.set_sync_debug_mode("error")` makes any hidden synchronisation an error
(weightings with solver loops, `traceable = False`, are exempt).
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import equipoise as eq

STEPS, M, D = 60, 10, 64


def trajectory(batch: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(STEPS, *batch, M, generator=generator) + 0.1
    jacobian = torch.randn(STEPS, *batch, M, D, generator=generator)
    params = torch.randn(STEPS, *batch, D, generator=generator)
    return losses, jacobian, params


def run_weighting(weighting: Any, device: str, batch: tuple[int, ...], *, strict: bool) -> tuple[Tensor, float]:
    losses, jacobian, _ = (t.to(device) for t in trajectory(batch))
    w = torch.full((M,), 1 / M, device=device)
    gramian = jacobian @ jacobian.mT
    given = {"gramian": gramian, "jacobian": jacobian}
    extra = [{need: given[need][t] for need in weighting.needs} for t in range(STEPS)]
    state = weighting.init(losses[0], **extra[0])
    coefficients, state = weighting.update(losses[0], state, w, **extra[0])
    _synchronise(device)
    if strict:
        torch.cuda.set_sync_debug_mode("error")
    started = time.perf_counter()
    for t in range(1, STEPS):
        coefficients, state = weighting.update(losses[t], state, w, **extra[t])
    torch.cuda.set_sync_debug_mode("default")
    _synchronise(device)
    return coefficients.cpu(), (time.perf_counter() - started) / (STEPS - 1)


def run_conversion(conversion: Any, device: str, batch: tuple[int, ...], *, strict: bool) -> tuple[Tensor, float]:
    losses, _, params = (t.to(device) for t in trajectory(batch))
    state = conversion.init({"x": params[0]}, losses[0])
    state = conversion.update({"x": params[0]}, losses[0], state)
    _synchronise(device)
    if strict:
        torch.cuda.set_sync_debug_mode("error")
    started = time.perf_counter()
    for t in range(1, STEPS):
        state = conversion.update({"x": params[t]}, losses[t], state)
    torch.cuda.set_sync_debug_mode("default")
    _synchronise(device)
    return conversion.output(state)["x"].cpu(), (time.perf_counter() - started) / (STEPS - 1)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(path: Path | None) -> bool:
    weightings: dict[str, Any] = {name: method.weighting for name, method in eq.methods().items() if name != "PMTL"}
    weightings["OMD adaptive PGD"] = eq.OMD("adaptive", eq.Euclidean(), optimism=5.0)
    weightings["OMD adaptive EG"] = eq.OMD("adaptive", eq.Entropic(floor=0.01), ideal=tuple(0.01 for _ in range(M)))
    weightings["OMD p-norm"] = eq.OMD(0.5, eq.PNorm())
    weightings["OMD box"] = eq.OMD(0.5, eq.Euclidean(), dual_set=eq.Box(0.01, 0.5))
    weightings["Relative OMD"] = eq.Relative(eq.OMD("adaptive"))
    conversions: dict[str, Any] = {
        "Last": eq.Last(),
        "Average": eq.Average(4),
        "Adaptive": eq.Adaptive(),
        "Adaptive K=8": eq.Adaptive(power=4, capacity=8),
        "Adaptive K=32": eq.Adaptive(capacity=32),
    }
    rows = []
    for batch in ((), (5,)):
        for name, weighting in weightings.items():
            rows.append(compare(name, batch, run_weighting, weighting, strict=bool(weighting.traceable)))
        for name, conversion in conversions.items():
            bounded = getattr(conversion, "capacity", 8) is not None
            rows.append(compare(name, batch, run_conversion, conversion, strict=bounded))
    for row in rows:
        print(
            f"{row['name']:24} {row['batch']!s:6} difference {row['difference']:.1e}  {row['synchronises']:10}"
            f"  {row['cuda_us']:8.0f} us cuda {row['cpu_us']:8.0f} us cpu"
        )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}))
    return all(row["difference"] < 1e-4 and row["synchronises"] != "yes" for row in rows)


def compare(name: str, batch: tuple[int, ...], run: Any, what: Any, *, strict: bool) -> dict[str, Any]:
    """One trajectory on both devices."""
    on_cpu, cpu = run(what, "cpu", batch, strict=False)
    synchronises = "no" if strict else "may"
    try:
        on_cuda, cuda = run(what, "cuda", batch, strict=strict)
    except RuntimeError as error:
        torch.cuda.set_sync_debug_mode("default")
        if "synchronizing" not in str(error):
            raise
        synchronises = "yes"
        on_cuda, cuda = run(what, "cuda", batch, strict=False)
    return {
        "name": name,
        "batch": batch,
        "difference": float((on_cpu - on_cuda).abs().max()),
        "synchronises": synchronises,
        "cuda_us": cuda * 1e6,
        "cpu_us": cpu * 1e6,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    raise SystemExit(0 if main(parser.parse_args().json) else 1)
