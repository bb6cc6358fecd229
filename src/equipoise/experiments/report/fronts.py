"""The data of the front explorer: sets of preferences with the solutions that methods found for them."""

import shlex
from pathlib import Path
from typing import Any, get_args

import torch

from equipoise import metrics, preference
from equipoise.experiments.paper import Preset
from equipoise.experiments.report.sources import Sources
from equipoise.experiments.results import Cell, short
from equipoise.experiments.synthetic import settings as synthetic
from equipoise.identity import digest
from equipoise.problems import KnownFront, problems

__all__ = ["explored", "hv_command", "table_cells"]

Record = dict[str, Any]

POINTS = 241
"""Points on a drawn front of two objectives; the error of the line is at most a tenth of a pixel."""
SCATTERED = 91
"""Points on a front of more objectives."""


def explored(sources: Sources) -> list[Record]:
    """The sets of the explorer: the user's own solutions, then tab:hv problem by problem.

    Runs on one problem with the same preferences and seeds form one set, so that they can be compared.
    """
    sets: dict[str, Record] = {}
    for preset in get_args(Preset):
        cells = table_cells(sources, preset)
        for name in synthetic.PROBLEMS:
            own = [cell for cell in cells if cell.problem == name]
            if own:
                found = _of_table(preset, name, own)
                sets[_key(found["title"], found["preferences"], found["seeds"])] = found
    known = len(sets)
    for path, record in sources.solved:
        weights = short(torch.tensor(record["preferences"], dtype=torch.float64))
        key = _key(record["problem"], weights, record["seeds"])
        found = sets.setdefault(key, _of_the_user(record, weights))
        taken = {method["name"] for method in found["methods"]}
        name = record["method"] if record["method"] not in taken else f"{record['method']} ({path.name})"
        losses = torch.tensor(record["losses"], dtype=torch.float64)
        found["methods"].append({"name": name, "losses": short(losses), "own": True})
        found["command"] = "\n".join(filter(None, [found["command"], _command(path, record)]))
    found_sets = list(sets.values())
    return found_sets[known:] + found_sets[:known]


def _key(problem: str, weights: object, seeds: list[int]) -> str:
    return repr((problem, weights, seeds))


def table_cells(sources: Sources, preset: Preset) -> list[synthetic.TableCell]:
    """The cells of tab:hv, for problems that have cells other than those of the preset `published`."""
    cells = synthetic.table(sources.cells, preset)
    if preset == "published":
        return [*cells, *_further(sources)]
    rows, usual = ({row.method: row for row in synthetic.settings(which)} for which in (preset, "published"))

    def spec(which: Preset, cell: synthetic.TableCell, row: synthetic.Setting) -> object:
        return synthetic.cell_spec(which, cell.problem, row, 0)

    own = (c for c in cells if spec(preset, c, rows[c.method]) != spec("published", c, usual[c.method]))
    shown = {cell.problem for cell in own}
    return [cell for cell in cells if cell.problem in shown]


def _further(sources: Sources) -> list[synthetic.TableCell]:
    """Methods that are not in the table, on its problems and with its seeds.

    Of several with one name, as after an edit of the code, the latest is used.
    """
    rows = (*synthetic.settings("published"), *synthetic.both_step_sizes("published"), *synthetic.excess_settings())
    known = {row.method for row in rows}  # a user's own method cannot have these names
    runs: dict[str, dict[int, Cell]] = {}
    for cell in sources.cells.cells:
        if cell.spec.get("experiment") == "synthetic" and cell.names.get("method", "?") not in known:
            runs.setdefault(digest({**cell.spec, "seed": 0}), {})[cell.spec["seed"]] = cell
    whole = [[of[seed] for seed in synthetic.SEEDS] for of in runs.values() if set(synthetic.SEEDS) <= of.keys()]
    last: dict[tuple[str, str], list[Cell]] = {}
    for cells in sorted(whole, key=lambda cells: max(cell.when for cell in cells)):
        last[cells[0].names.get("method", "?"), cells[0].names.get("task", "")] = cells
    return [
        synthetic.table_cell(method, problem, synthetic.SEEDS, [cell.result for cell in cells])
        for (method, problem), cells in last.items()
        if problem in synthetic.PROBLEMS
    ]


def hv_command(preset: Preset) -> str:
    """The command that makes tab:hv."""
    return "equipoise reproduce table-hv" + ("" if preset == "published" else f" --preset {preset}")


def _of_table(preset: Preset, name: str, cells: list[synthetic.TableCell]) -> Record:
    return {
        "title": name if preset == "published" else f"{name}, settings of the paper’s text",
        "group": "tab:hv",
        **_front(synthetic.problem_of(name, preset)),
        "preferences": short(preference.linspace(synthetic.PREFERENCES)),
        "seeds": list(synthetic.SEEDS),
        "methods": [{"name": cell.method, "losses": short(cell.points)} for cell in cells],
        "command": hv_command(preset),
        "note": synthetic.on_other_rays(preset),
    }


def _of_the_user(record: Record, weights: object) -> Record:
    """A set for a run of the user, still without the run."""
    known, m = problems().get(record["problem"]), len(record["preferences"][0])
    return {
        "title": f"{record['problem']}, {len(record['preferences'])} preferences",
        "group": "your runs",
        **(_front(known) if known is not None and known.m == m else {"front": [], "objectives": m}),
        "preferences": weights,
        "seeds": record["seeds"],
        "methods": [],
        "command": "",
        "note": "",
    }


def _command(path: Path, record: Record) -> str:
    words = ["equipoise", "solve", record["problem"], "--method", record["method"]]
    words += ["--preferences", str(len(record["preferences"])), "--seeds", ",".join(map(str, record["seeds"]))]
    for option, key in (("--steps", "steps"), ("--step-size", "step_size")):
        words += [option, str(record[key])] if key in record else []
    return shlex.join([*words, "--json", str(path)])


def _front(problem: KnownFront) -> Record:
    """The front of a problem; of two objectives in order, so that it can be drawn as a line."""
    front = problem.front(POINTS if problem.m == 2 else SCATTERED)
    front = front[metrics.non_dominated(front)] if problem.m == 2 else front
    return {"front": short(front), "objectives": problem.m}
