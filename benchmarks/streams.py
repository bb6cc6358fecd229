"""Whether the stream beside a training holds it up, by when it had its first work. Needs a CUDA device.

    python -m benchmarks.streams [--json FILE]

A step of `MultiObjective` over one of LS (ResNet-18, m = 10, batch 130, 64 × 64 pixels, where the device is the limit):
with a stream that had its first work beside a busy one, as the library takes it, and with one as torch gives it. Each
in a process of its own, after one of three beginnings.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from benchmarks import training

import equipoise as eq
from equipoise import streams

BEGINNINGS = ("nothing", "a training", "a training and ten streams")
STREAMS = ("introduced", "as it comes")


def begin(beginning: str, task: training.Task) -> list[torch.cuda.Stream]:
    """What a process may have done before; streams in use must stay."""
    if beginning == "nothing":
        return []
    step = training.linear(task)
    for batch in training.Stream(task).take(3):
        step(batch)
    torch.cuda.synchronize()
    others = [torch.cuda.Stream(priority=-1) for _ in range(10 if "streams" in beginning else 0)]
    small = torch.zeros(1, device=task.device)
    for other in others:
        with torch.cuda.stream(other):
            small.add_(1)
    torch.cuda.synchronize()
    return others


def measure(beginning: str, stream: str, rounds: int = 12) -> training.Row:
    """In this process."""
    task = training.residual(torch.device("cuda", 0), 13, 64)
    if stream == "as it comes":
        streams._introduced = lambda device: torch.cuda.Stream(device, priority=-1)
    kept = begin(beginning, task)
    steps = {"LS": training.linear(task), "ours": training.shell(task, eq.OMD("adaptive"), training.ARCHIVE)}
    training.take_turns(steps, task, 4, training.BLOCK)
    times = training.take_turns(steps, task, rounds, training.BLOCK)
    del kept
    return training.ratio(task, stream, times["ours"], times["LS"], None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        row = measure(*args.one)
        print(json.dumps([row.measured, row.low, row.high]))
        return
    if not torch.cuda.is_available():
        parser.error("a CUDA device is needed")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n\n{'before':<32}{'stream':<16}times LS")
    rows = []
    for beginning in BEGINNINGS:
        for stream in STREAMS:
            command = [sys.executable, "-m", "benchmarks.streams", "--one", beginning, stream]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            value, low, high = json.loads(found.stdout.splitlines()[-1])
            rows.append({"before": beginning, "stream": stream, "ratio": value, "low": low, "high": high})
            print(f"{beginning:<32}{stream:<16}{value:.4f} ({low:.4f} – {high:.4f})", flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
