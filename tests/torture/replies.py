"""One hostile client in a Flower run: its reply is rejected or harmless."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Context, Message
from tests.flower.conftest import Town
from tests.flower.hostile import KINDS, Hostile, hostile_replies
from tests.torture.outcome import Outcome, Row, Trial, collect, judge

NUMBER, PIECE = 400, len(KINDS)
"""Replies, and those of one process: every kind once."""
ROUNDS, LIAR = 2, 3
"""Of a run, and the client that lies, counted from 0; its node is one more."""


def rows(share: float, seed: int) -> list[Row]:
    """The row of hostile replies."""
    found: dict[str, Row] = {}
    pieces = math.ceil(NUMBER * share / PIECE)
    trials: list[Trial] = [("hostile replies", partial(_try, seed * 1_000 + k)) for k in range(pieces)]
    collect(found, trials)
    return [*found.values()]


def _try(seed: int) -> list[Outcome]:
    without = _Run(lost=lambda node, _: node == LIAR + 1).model()
    return [_outcome(one, without, f"{one.name}, seed {seed}") for one in hostile_replies(seed, PIECE)]


def _outcome(hostile: Hostile, without: dict[str, bytes], what: str) -> Outcome:
    run = _Run(client=partial(_answer, Town().train(), hostile))
    failed = judge(lambda: bool(run.model()), what)
    if failed.kind != "equal":
        return failed._replace(kind="silent", detail=f"{what}: the run ended: {failed.detail}")
    if not all(np.isfinite(x).all() for x in run.numbers()):
        return Outcome("silent", f"{what}: the model, the answer or λ is not finite")
    refused = {one.node for one in run.strategy.rejected}
    if LIAR + 1 not in refused:
        return Outcome("silent", f"{what}: it was not refused") if hostile.refused else Outcome("equal")
    if hostile.refused is False:
        return Outcome("silent", f"{what}: it must not be refused: {run.strategy.rejected[0].reason}")
    if len(run.strategy.rejected) == ROUNDS and refused == {LIAR + 1} and run.model() != without:
        return Outcome("silent", f"{what}: it was refused, and the model is not that of a run without it")
    return Outcome("noticed")


def _answer(
    train: Callable[[Message, Context], Message], hostile: Hostile, message: Message, context: Context
) -> Message:
    good = train(message, context)
    return hostile.spoil(message, good) if int(context.node_config["partition-id"]) == LIAR else good


class _Run:
    """A run of a few rounds."""

    def __init__(self, client: Any = None, **settings: Any) -> None:
        town = Town()
        self.strategy = town.strategy()
        self._start = partial(self.strategy.start, town.grid(client, **settings), town.arrays(), num_rounds=ROUNDS)
        self._result: Any = None

    def model(self) -> dict[str, bytes]:
        """The model at the end, and the answer."""
        self._result = self._result or self._start()
        parts = {"last": self._result.arrays, "answer": self.strategy.solution()}
        return {f"{part}.{name}": array.data for part, arrays in parts.items() for name, array in arrays.items()}

    def numbers(self) -> Iterator[Any]:
        """All that must be finite."""
        for arrays in (self._result.arrays, self.strategy.solution()):
            yield from (array.numpy() for array in arrays.values())
        yield self.strategy.weights.numpy()
