"""`equipoise reproduce table-tuned` (tab:2): every method's setting, searched among the values that the paper tried."""

from collections.abc import Mapping
from dataclasses import replace

from equipoise.errors import NonFiniteLossError
from equipoise.experiments.federated import settings
from equipoise.experiments.federated.compute import provide_jobs
from equipoise.experiments.federated.settings import Run
from equipoise.experiments.federated.tables import TAKES_TASK
from equipoise.experiments.item import Request, item
from equipoise.experiments.paper import TRIED
from equipoise.experiments.render import Page, Sheet
from equipoise.federated import Task

__all__ = ["best", "search", "table_tuned", "valued"]

Losses = dict[float, float | None]
"""The worst client's training loss for every value, mean over the seeds; None if there is no run or it diverged."""


def valued(request: Request, task_name: str, task: Task, method: str, value: float | None) -> Run:
    """A method with one value on a task, as a row of a table."""
    row = settings.row(method, task_name, request.settings, value, dict(request.own))
    usual = value is None or value == settings.tuned(method, task_name)
    name = method if usual else f"{method} ({value:g})"
    return replace(row, name=name, task=task, seeds=request.seeds or (0,), precision=request.precision)


def search(request: Request, task_name: str, task: Task, method: str) -> tuple[Losses, list[NonFiniteLossError]]:
    """Run a method with every value that the paper tried; returns the losses and the errors."""
    rows = {value: valued(request, task_name, task, method, value) for value in TRIED[method]}
    failed = provide_jobs(request, list(rows.values()))
    losses: Losses = {}
    for value, row in rows.items():
        found = row.found(request.store).values()
        worst = [result["outputs"][row.output]["train"]["agnostic_loss"] for result in found]
        losses[value] = sum(worst) / len(worst) if len(worst) == len(row.to_run) else None
    return losses, [error for _, error in failed]


def best(losses: Mapping[float, float | None]) -> float | None:
    """The value with the smallest loss: the paper's rule."""
    finite = {value: loss for value, loss in losses.items() if loss is not None}
    return min(finite, key=finite.__getitem__) if finite else None


@item("tab:2", "appendix B.2", TAKES_TASK)
def table_tuned(request: Request) -> None:
    """The best setting of every method, searched again (digits unless --task says otherwise)."""
    page = Page(request, "table-tuned", "The best setting of every method (tab:2)")
    records = []
    for task_name in request.task or ("digits-rotation",):
        task = settings.sized(settings.tasks(request.settings)[task_name], request.rounds)
        lines = []
        for method in request.methods or TRIED:
            if method not in TRIED:
                page.say(f"{method} has no setting in tab:2")
                continue
            losses, _ = search(request, task_name, task, method)
            chosen, printed = best(losses), settings.tuned(method, task_name)
            pairs = [(value, None if value is None else losses.get(value)) for value in (chosen, printed)]
            cells = (text for value, loss in pairs for text in (_text(value, "g"), _text(loss, ".4f")))
            lines.append((method, str(len(losses)), *cells))
            record = {"task": task_name, "method": method, "best": chosen, "paper": printed}
            records.append({**record, "losses": {f"{value:g}": loss for value, loss in losses.items()}})
        heads = ("method", "tried", "best", "its loss", "tab:2", "its loss")
        seeds = ", ".join(map(str, request.seeds or (0,)))
        title = f"tab:2, {task_name}, {task.rounds} rounds, seed {seeds}: the worst client's training loss"
        page.show(Sheet(title, heads, tuple(lines)))
    if any(task.startswith("digits") for task in request.task or ("digits",)):
        page.say("For digits the column tab:2 has the paper's values on MNIST: another task, for orientation.")
    page.finish([], records)


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
