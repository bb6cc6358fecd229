"""Simulate federated learning: clients train, the server weights their models, conversions record."""

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise import preference as preferences
from equipoise.conversion import Adaptive, Average, Conversion, Last
from equipoise.conversion.plan import Params
from equipoise.datasets import Dataset, load
from equipoise.errors import require
from equipoise.federated.checkpoint import Checkpoint
from equipoise.federated.graphed import Graphed
from equipoise.federated.local_work import Engine, Evaluation, Part, Precision
from equipoise.federated.models import Dense, Model, ResNet20
from equipoise.federated.sequential import Sequential
from equipoise.federated.server import Curve, Outputs, Point, Rounds, Server
from equipoise.federated.splits import ClientData, deal
from equipoise.federated.stacked import Stacked
from equipoise.federated.task import Task
from equipoise.registry import Method, resolve
from equipoise.weighting import Weighting

__all__ = ["History", "Result", "outputs", "simulate"]

EngineName = Literal["auto", "sequential"]


class History(NamedTuple):
    """Losses, coefficients and archive sizes of every round.

    Examples:
        >>> task = eq.federated.Task(rounds=2, work=eq.federated.LocalWork(epochs=1))
        >>> history = eq.federated.simulate(task, "FedAvg", seeds=(0, 1)).history
        >>> tuple(history.losses.shape)  # (rounds, seeds, clients)
        (2, 2, 10)
        >>> round(history.coefficients[0, 0, 0].item(), 3)  # FedAvg: a tenth for each of ten clients
        0.1
    """

    losses: Tensor
    """The loss of every client that the server used, NaN where it was absent, (T, S, m)."""
    coefficients: Tensor
    """The weight of every client's model in the server's step, (T, S, m)."""
    archive: Tensor
    """Members of the adaptive conversion's archive, 0 if there is none, (T, S)."""


class Result(NamedTuple):
    """The result of a simulation with S seeds, m clients and T rounds.

    Examples:
        >>> task = eq.federated.Task(rounds=2, work=eq.federated.LocalWork(epochs=1))
        >>> result = eq.federated.simulate(task, "FedAvg")
        >>> sorted(result.test), sorted(result.params["last"])
        (['adaptive', 'average', 'last'], ['1.bias', '1.weight', '3.bias', '3.weight'])
        >>> (result.test["last"].losses < result.untrained.losses).all().item()
        True
    """

    params: dict[str, dict[str, Tensor]]
    """The model of every output, (S, ...) per name."""
    train: dict[str, Evaluation]
    """Every output on the clients' training samples."""
    test: dict[str, Evaluation]
    """Every output on the clients' test samples."""
    untrained: Evaluation
    """The initial model on the test samples."""
    history: History
    curves: dict[str, Curve]
    """For every output, its evaluations during the run."""
    seconds: list[float]
    """Time of every round without evaluation; on a GPU the first one is mostly compilation."""


def outputs(method: Method | None = None) -> dict[str, Conversion[Any]]:
    """The outputs of one trajectory: the last model, the average and the adaptive conversion.

    Args:
        method: The method of the trajectory. Its conversion is added as "own" if it is not one of these three.

    Examples:
        >>> eq.federated.outputs()
        {'last': Last(), 'average': Average(power=0.0), 'adaptive': Adaptive(power=0.0, capacity=None, ties='stored')}
        >>> eq.federated.outputs(eq.methods()["equipoise"])["own"]
        Suffix(power=8.0, capacity=8, z=2.0)
        >>> "own" in eq.federated.outputs(eq.methods()["AdaOMDgd-TCH"])  # which has "adaptive"
        False
    """
    usual: dict[str, Conversion[Any]] = {"last": Last(), "average": Average(), "adaptive": Adaptive()}
    if method is None or method.conversion in usual.values():
        return usual
    return {**usual, "own": method.conversion}


def simulate(
    task: Task,
    method: Method | Weighting[Any] | str | None = None,
    *,
    seeds: Sequence[int] = (0,),
    preference: Tensor | Sequence[float] | Sequence[Sequence[float]] | None = None,
    conversions: Outputs | None = None,
    dataset: Dataset | None = None,
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    precision: Precision | None = None,
    engine: EngineName = "auto",
    evaluate_every: int | None = None,
    evaluate_parts: Sequence[Part] = ("train", "test"),
    evaluate_first: bool = False,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 60.0,
    deadline: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Simulate federated learning, all seeds at once.

    In every round t = 1..T clients start from the server's model θ and send back θ_i. From their losses (and
    pseudo-gradients (θ − θ_i)/η, for weightings that need them) the server computes coefficients c and moves to
    θ + Σ c_i (θ_i − θ), which is Σ c_i θ_i if they sum to one.

    Args:
        task: The problem.
        method: A `Method`, a name from `methods()`, or a weighting; by default `default(steps=task.rounds)`.
        seeds: The seeds of the split, the initial model and the batches.
        preference: w, one entry per client, summing to one: one for all seeds, (m,), or one per seed, (S, m); uniform
            by default. A seed may be repeated with different preferences.
        conversions: The outputs, by name. By default `outputs(method)`: "last", "average" and "adaptive", and the
            method's own conversion as "own" if it is not one of these. The default method's answer is "own".
        dataset: The data to use instead of the data set `task.data`.
        folder: Where to look for the data first.
        device: The device of all tensors.
        precision: The precision of the layers' products: by default float32, or TF32 on a GPU.
        engine: "auto" takes the fastest that the model allows; "sequential" trains one client after the other.
        evaluate_every: Also evaluate all outputs after every so many rounds, and after the last.
        evaluate_parts: The data for these evaluations: "train", "test" or both. The last models are evaluated on both.
        evaluate_first: Whether to evaluate after the first round too.
        checkpoint: A file for the state of the run, from which an interrupted run resumes.
        checkpoint_seconds: Time between two writes of that file.
        deadline: When to stop, in the time of `time.monotonic`: after the first round that ends later, the checkpoint
            is written and TimeoutError raised.
        progress: Called after every round with the number of rounds done.

    Raises:
        NonFiniteLossError: A client's loss is NaN or infinite; the message says whose and when (on a GPU one round
            late, to avoid a synchronisation). The checkpoint stays.
        TimeoutError: The deadline has passed and rounds are left.

    Examples:
        >>> task = eq.federated.Task(split=eq.federated.Rotation((0, 0, 0, 2)), rounds=10)
        >>> worst = {}
        >>> for name, weighting in {"FedAvg": eq.Linear(), "OMD": eq.OMD(5.0, eq.Entropic())}.items():
        ...     result = eq.federated.simulate(task, weighting)
        ...     worst[name] = eq.metrics.agnostic_loss(result.train["last"].losses).item()
        >>> worst["OMD"] < 0.97 * worst["FedAvg"]  # the client whose images are upside down
        True
    """
    _check_task(task)
    where = _device(device)
    chosen = resolve(method, task.rounds)
    wanted = dict(outputs(chosen) if conversions is None else conversions)
    require(isinstance(seeds, Iterable), "seeds must be a sequence, such as (0,) or range(3)", seeds)
    seeds = tuple(seeds)
    require(len(seeds) >= 1, "seeds must hold at least one seed", seeds)
    require(evaluate_every is None or evaluate_every >= 1, "evaluate_every must be at least 1", evaluate_every)
    parts = _parts(evaluate_parts)
    kind = _precision(precision, where)
    source = load(task.data, folder) if dataset is None else dataset
    validation = any(kind.startswith("validation") for kind in task.sources)
    data = deal(source, task.split, seeds, validation=validation).to(where)
    _check_model(task.model, source)
    worker = _engine(engine, task, data, kind)
    run = Rounds(
        task, chosen.weighting, chosen.transform, wanted, data, worker, _weights(preference, task, len(seeds), where)
    )

    server = run.start()
    untrained = worker.evaluate(server.params, server.buffers, "test")
    saved = None
    if checkpoint is not None:
        plain = (parts, evaluate_first) == (("train", "test"), False)
        looks = repr(evaluate_every if plain else (evaluate_every, parts, evaluate_first))
        settings = {**run.describe(seeds), "data": _digest(source), "evaluate_every": looks}
        saved = Checkpoint(checkpoint, settings, checkpoint_seconds)
        server = saved.load(server)
    while server.round < task.rounds:
        began = time.perf_counter()
        run.advance(server)
        last = server.round == task.rounds
        looked_at = (evaluate_every is not None and server.round % evaluate_every == 0) or (
            evaluate_first and server.round == 1
        )
        if where.type == "cuda" and (looked_at or last):  # evaluation is not part of the rounds' time
            torch.cuda.synchronize(where)
        server.seconds.append(time.perf_counter() - began)
        if looked_at and not last:
            _mark(server, _evaluated(worker, run.answers(server), server.buffers, parts), parts)
        late = not last and deadline is not None and time.monotonic() >= deadline
        if saved is not None and (late or saved.due()):
            run.settle(server)
            saved.keep(server)
        if progress is not None:
            progress(server.round)
        if late:
            raise TimeoutError(f"time is up after round {server.round} of {task.rounds}")
    run.settle(server)
    answers = run.answers(server)
    final = _evaluated(worker, answers, server.buffers, ("train", "test"))
    if evaluate_every is not None or (evaluate_first and task.rounds == 1):
        _mark(server, final, parts)
    return Result(
        answers,
        {name: on["train"] for name, on in final.items()},
        {name: on["test"] for name, on in final.items()},
        untrained,
        History(*(torch.stack(rows) for rows in (server.losses, server.coefficients, server.archive))),
        server.curves,
        server.seconds,
    )


_Found = dict[str, dict[Part, Evaluation]]
"""By output and part."""


def _evaluated(worker: Engine, answers: Mapping[str, Params], buffers: Params, parts: Sequence[Part]) -> _Found:
    return {name: {part: worker.evaluate(theta, buffers, part) for part in parts} for name, theta in answers.items()}


def _mark(server: Server, found: _Found, parts: Sequence[Part]) -> None:
    """Add a point with these parts to every curve."""
    for name, on in found.items():
        seen = {part: on[part] for part in parts}
        server.curves[name].append(Point(server.round, seen.get("train"), seen.get("test")))


def _check_task(task: object) -> None:
    rule = "task must be a federated.Task; those with names are in equipoise.experiments.federated.tasks()"
    require(isinstance(task, Task), rule, lambda: repr(task))


def _precision(given: Precision | None, device: torch.device) -> Precision:
    kinds = Precision.__args__  # type: ignore[attr-defined]
    require(given is None or given in kinds, f"precision must be one of {', '.join(kinds)}", given)
    return given or ("tf32" if device.type == "cuda" else "float32")


def _parts(given: Sequence[Part]) -> tuple[Part, ...]:
    parts = tuple(given)
    known = len(parts) >= 1 and set(parts) <= {"train", "test"}
    require(known, 'evaluate_parts must be "train", "test" or both', parts)
    return parts


def _device(device: torch.device | str) -> torch.device:
    where = torch.device(device)
    missing = where.type == "cuda" and not torch.cuda.is_available()
    require(not missing, "device must exist: torch.cuda finds no GPU, use cpu", str(where))
    return where


def _weights(
    preference: Tensor | Sequence[float] | Sequence[Sequence[float]] | None,
    task: Task,
    seeds: int,
    device: torch.device,
) -> Tensor:
    m = task.split.clients
    if preference is None:
        return torch.full((m,), 1.0 / m, device=device)
    w = preferences.validate(preference, m)
    shapes = {(m,), (seeds, m)}
    require(tuple(w.shape) in shapes, f"preference must have shape ({m},), or ({seeds}, {m}) by seed", tuple(w.shape))
    return w.to(dtype=torch.float32, device=device)


def _engine(name: EngineName, task: Task, data: ClientData, precision: Precision) -> Engine:
    require(name in {"auto", "sequential"}, 'engine must be "auto" or "sequential"', name)
    on_gpu = data.train.inputs.is_cuda
    if name == "auto" and isinstance(task.model, Dense):
        return Stacked(task.model, task.work, data, precision)
    if name == "auto" and on_gpu and isinstance(task.model, ResNet20) and _whole_batches(task, data):
        return Stacked(task.model, task.work, data, precision)
    if name == "auto" and on_gpu:
        return Graphed(task.model, task.work, data, precision, task.batch_norm)
    return Sequential(task.model, task.work, data, precision, task.batch_norm)


def _whole_batches(task: Task, data: ClientData) -> bool:
    """Whether a model with BatchNorm sees only full batches and needs no running statistics."""
    parts = [part for part in (data.train, data.test, data.validation) if part is not None]
    even = all(part.even for part in parts)
    size = task.work.batch_size
    return task.batch_norm == "batch" and even and (size is None or data.train.labels.shape[-1] % size == 0)


def _check_model(model: Model, source: Dataset) -> None:
    """Raise ValueError unless the model takes the data's inputs and has a logit for every label."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = model.module().eval()
        shape = tuple(source.train_inputs.shape[1:])
        try:
            logits = module(source.train_inputs[:2].to(torch.float32))
        except RuntimeError as error:
            raise ValueError(f"model must take inputs of shape {shape}; found {model}, which says: {error}") from None
    classes = int(source.train_labels.max()) + 1
    fits = logits.ndim == 2 and logits.shape[1] >= classes
    require(fits, f"model must give logits (n, {classes}) or more, one per class", tuple(logits.shape))


def _digest(source: Dataset) -> str:
    """A checksum of the samples."""
    total = 0
    for t in (source.train_inputs, source.train_labels, source.test_inputs, source.test_labels):
        total = zlib.crc32(t.contiguous().numpy().data, total)
    return f"{source.name} {total:08x}"
