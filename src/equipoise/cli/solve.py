"""`equipoise methods`, `problems`, `solve`: the synthetic problems."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Column

from equipoise import metrics, preference
from equipoise.cli.shared import check_files, console, named, read_floats, read_method, read_seeds
from equipoise.errors import require
from equipoise.experiments.render import fitted, grid, listing, say
from equipoise.experiments.results import write_atomically
from equipoise.identity import spec as identity
from equipoise.problems import problems
from equipoise.registry import default, methods
from equipoise.solver import solve as solve_problem

__all__ = ["brief", "list_methods", "list_problems", "solve_command"]


def list_methods() -> None:
    """List every method: its weighting and conversion with their main settings, and what it needs."""
    table = listing(*(Column(head, overflow="fold") for head in ("method", "weighting", "conversion", "needs")))
    for name, method in methods().items():
        needs = ", ".join(sorted(method.weighting.needs)) or "losses"
        weighting = brief(method.weighting)
        # The transform of the losses, as in PropFair.
        whole = weighting if method.transform is None else f"{weighting} of {brief(method.transform)}"
        table.add_row(name, whole, brief(method.conversion), needs)
    console.print(fitted(console, table))
    say(console, "FedAvg is LS by another name. ALMO is AFL until one confines its weights,")
    say(console, "as in OMD(step_size=1.0, dual_set=Box(upper=0.5)).")


def list_problems() -> None:
    """List the synthetic problems."""
    table = listing("problem", "objectives", "variables", "bounds", "reference point")
    for name, problem in problems().items():
        bounds = f"[{problem.lower:g}, {problem.upper:g}]"
        table.add_row(name, str(problem.m), str(problem.d), bounds, str(problem.reference))
    console.print(fitted(console, table))


def solve_command(
    problem: Annotated[str, typer.Argument(help="A problem of `equipoise problems`.")],
    method: Annotated[
        str, typer.Option(help="A method of `equipoise methods`, or module:name of your own.")
    ] = "equipoise",
    preferences: Annotated[
        int | None,
        typer.Option(
            help="Number of evenly spread preferences, 10 if not given. With three or more objectives: the largest "
            "even grid of at most this number."
        ),
    ] = None,
    preference_: Annotated[
        list[str] | None,
        typer.Option("--preference", help="A preference of your own, such as 0.3,0.7; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    steps: Annotated[int, typer.Option(help="Iterations.")] = 1000,
    step_size: Annotated[float, typer.Option(help="Step size of the gradient step.")] = 0.02,
    plot: Annotated[Path | None, typer.Option(help="Draw the solutions into this picture.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the solutions to this file.")] = None,
) -> None:
    """Solve a problem for many preferences at once."""
    target = problems()[named("problem", problem, problems())]
    name, own = read_method(method, methods())
    known = {**methods(), "equipoise": default(steps=steps), **dict(own)}
    chosen = known[name]
    wanted = read_seeds(seeds)
    weights = _wanted_preferences(preference_ or [], preferences, target.m)
    check_files(Path("out"), plot=plot, json=json_file)
    require(plot is None or target.m == 2, "plot must not be given unless the problem has two objectives", target.m)
    found = solve_problem(
        target, weights, chosen, seeds=wanted, steps=steps, step_size=step_size, progress=console.is_terminal
    )
    losses = found.losses["solution"].to(torch.float64)
    table = grid(f"{target.name}, {name}, seeds {seeds}", ())
    for head in ("w", "f, mean of seeds", "w∘f", "imbalance"):
        table.add_column(head, justify="right")
    spreads = metrics.imbalance(losses.mean(0), weights)
    for w, f, spread in zip(weights, losses.mean(0), spreads.tolist(), strict=True):
        shown = f"{spread:.2%}" if spread < 10 else "> 999 %"
        numbers = (" ".join(f"{value:.4f}" for value in values.tolist()) for values in (w, f, w * f))
        table.add_row(*numbers, shown if bool((w > 0).all()) else "no ray")
    console.print(fitted(console, table))
    say(console, "imbalance: largest/smallest w∘f − 1")
    _note_missed(weights, spreads, name, follows=chosen.weighting.origin is not None)
    volume = metrics.hypervolume(losses, target.reference)
    spread_of_seeds = f" ± {volume.std(correction=0):.4f}" if len(wanted) > 1 else ""
    console.print(f"hypervolume {volume.mean():.4f}{spread_of_seeds}", highlight=False)
    if json_file is not None:
        record = {
            "problem": target.name,
            "method": name,
            "weighting": identity(chosen.weighting),
            "conversion": identity(chosen.conversion),
            "seeds": list(wanted),
            "steps": steps,
            "step_size": step_size,
            "preferences": weights.tolist(),
            "losses": losses.tolist(),
            "parameters": found.params["solution"].tolist(),
            "hypervolume": volume.tolist(),
        }
        write_atomically(json_file, json.dumps(record))
        say(console, f"wrote {json_file}")
    if plot is not None:
        from equipoise.experiments.synthetic.figures import front_grid  # noqa: PLC0415 (matplotlib takes a second)

        figure = front_grid([[(target, name, losses)]], weights, {name: f"{target.name}, {name}"}, size=3.2)
        plot.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(plot)
        say(console, f"wrote {plot}")


def brief(value: object) -> str:
    """A weighting or conversion with its non-default settings, its step size, and numbers that are usually tuned.

    These are floats larger than a tolerance, other than 0, 1 and infinity, which mostly switch something off.
    """
    if isinstance(value, float):
        return f"{value:g}"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    parts = []
    for field in dataclasses.fields(value):
        setting = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        number = isinstance(setting, float) and 1e-3 < setting < math.inf and setting != 1.0
        tuned = field.name == "step_size" or number
        if setting != default or tuned:
            many = isinstance(setting, tuple) and len(setting) > 3
            shown = f"<{len(setting)} of them>" if many else brief(setting)
            parts.append(shown if field.name == "inner" else f"{field.name}={shown}")
    return f"{type(value).__name__}({', '.join(parts)})"


def _wanted_preferences(own: Sequence[str], count: int | None, m: int) -> torch.Tensor:
    """The given preferences, or a grid, (preferences, m); prints a note if the grid has another size."""
    if own:
        require(count is None, "preferences must not be given together with preference", count)
        rows = [read_floats("preference", text) for text in own]
        return torch.stack([preference.validate(torch.tensor(row, dtype=torch.float64), m) for row in rows])
    weights = _spread(10 if count is None else count, m)
    if count is not None and len(weights) != count:
        number = f"{len(weights)} preference{'s' if len(weights) > 1 else ''}"
        say(console, f"{number}: the largest grid of at most {count} for m = {m}")
    return weights


def _note_missed(weights: torch.Tensor, spreads: torch.Tensor, name: str, *, follows: bool) -> None:
    """Name every preference that is missed by far, and say why if it is extreme.

    Args:
        weights: The preferences, (preferences, m).
        spreads: The imbalance of each, (preferences,).
        name: The method's.
        follows: Whether the method asks for equal w∘f.
    """
    far = (spreads >= 10) & (weights.amin(-1) > 0)
    end = far & (weights.amin(-1) <= 0.05) & follows
    if bool(end.any()):
        one = int(end.sum()) == 1
        say(
            console,
            f"> 999 %: the ray{'' if one else 's'} of {_listed(weights[end])} meet{'s' if one else ''} the front close "
            f"to its end{'' if one else 's'}, where a loss is almost 0, and the steps did not come near enough; more "
            "--steps may",
        )
    rest = far & ~end
    if bool(rest.any()):
        other = "" if name == "equipoise" else ", or another method such as equipoise,"
        far_off = f"the largest w∘f is far above the smallest for {_listed(weights[rest])}"
        say(console, f"> 999 %: {far_off}; more --steps{other} may come nearer")


def _listed(weights: torch.Tensor) -> str:
    """Preferences (n, m) in words."""
    rows = [f"w = {', '.join(f'{entry:g}' for entry in row)}" for row in weights.tolist()]
    return rows[0] if len(rows) == 1 else f"{'; '.join(rows[:-1])} and {rows[-1]}"


def _spread(count: int, m: int) -> torch.Tensor:
    """The finest even grid of at most count preferences; exactly count for two objectives. A single one is uniform.

    For more than two objectives, the uniform preference is added in front if the grid lacks it. A grid that has only
    corners is moved halfway to the middle, because a corner asks for one objective and no trade-off.
    """
    require(count >= 1, "preferences must be at least 1", count)
    centre = torch.full((1, m), 1.0 / m, dtype=torch.float64)
    if count < m:
        return centre

    def size(divisions: int) -> int:
        return math.comb(divisions + m - 1, m - 1) + (m > 2 and divisions % m > 0)

    divisions = 1
    while size(divisions + 1) <= count:
        divisions += 1
    corners = m > 2 and divisions == 1
    weights = preference.grid(divisions, m, margin=0.5 / m if corners else 0.01)
    return torch.cat([centre, weights]) if len(weights) < size(divisions) <= count else weights
