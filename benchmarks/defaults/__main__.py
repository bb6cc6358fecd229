"""Compare the default with the other methods, on problems and seeds that it was chosen on and on others.

    python -m benchmarks.defaults --summary                                  # everything that is not in the file yet
    python -m benchmarks.defaults --part synthetic --half chosen --rows 'F*' --methods equipoise,LS --steps 1000
    python -m benchmarks.defaults --jobs 16 --digits digits.npz              # on a machine without scikit-learn
    python -m benchmarks.defaults --methods equipoise,LS --update docs/results/defaults.json    # one column anew
    python -m benchmarks.defaults --show docs/results/defaults.json          # what was published, without a run

Every finished run is added to the file of `--json`, so that an interrupted command goes on where it stopped. To try a
method of your own, call `synthetic.run`, `networks.run` and `federated.run` with a dictionary of methods.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.defaults import digits, federated, summary, synthetic
from benchmarks.defaults.columns import BASE, columns
from benchmarks.defaults.jobs import HALVES, PARTS, Order, execute, missing
from benchmarks.defaults.results import append, read


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defaults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all")
    parser.add_argument("--rows", metavar="PATTERN", help="only rows whose name contains this, such as 'F*Adam'")
    names = ", ".join(columns())
    parser.add_argument("--methods", type=_methods, default=tuple(columns()), help=f"columns, by commas, of: {names}")
    parser.add_argument("--steps", type=_numbers, default=synthetic.STEPS, help="of synthetic rows, such as 1000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--json", type=Path, default=Path("out/defaults.jsonl"), help="where finished runs are kept")
    parser.add_argument("--digits", type=Path, help="an .npz file with the digits, where there is no scikit-learn")
    parser.add_argument("--write-digits", type=Path, metavar="FILE", help="write that file, and do nothing else")
    parser.add_argument("--summary", action="store_true", help="print the columns' totals and the rows that are lost")
    parser.add_argument("--publish", type=Path, metavar="FILE", help="write the scores of all rows to a small file")
    parser.add_argument("--update", type=Path, metavar="FILE", help="put the columns of --methods but LS into it")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print such a file, and do nothing else")
    chosen = parser.parse_args(arguments)
    if chosen.write_digits is not None:
        digits.write(chosen.write_digits)
        return
    if chosen.digits is not None:
        os.environ[digits.VARIABLE] = str(chosen.digits.resolve())
    parts = PARTS if chosen.part == "all" else (chosen.part,)
    halves = HALVES if chosen.half == "all" else (chosen.half,)
    order = Order(parts, halves, chosen.methods, chosen.steps, chosen.rows, chosen.device)
    if chosen.show is None:
        rows = _made(order, chosen.json, chosen.jobs)
        if chosen.publish is not None:
            summary.save(rows, chosen.publish)
        if chosen.update is not None:
            columns_run = [name for name in chosen.methods if name != BASE]
            rows = summary.merged(summary.load(chosen.update), rows, columns_run)
            summary.save(rows, chosen.update)
    else:
        rows = summary.load(chosen.show)
    shown = [row for row in rows if order.fits(row.part, row.half, row.name)]
    print(summary.summary(shown) if chosen.summary or chosen.show else summary.table(shown))


def _made(order: Order, file: Path, workers: int) -> list[summary.Row]:
    """Run what is missing, and score everything."""
    todo = list(missing(order, read(file)))
    for n, (job, records) in enumerate(execute(todo, workers), 1):
        append(file, records)
        print(f"{n}/{len(todo)} {job.part}, {job.half}: {job.problem}, {len(job.names)} methods", flush=True)
    return summary.rows([*read(file), *federated.recorded(columns(federated.CLIENTS))])


def _methods(text: str) -> tuple[str, ...]:
    known, names = columns(), tuple(text.split(","))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"methods must be columns of the bench; found {name!r}")
    return names


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
