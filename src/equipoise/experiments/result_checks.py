"""Checks that a result has the form of its experiment's results: a cell may come from anywhere."""

import math
from collections.abc import Callable
from typing import Any

__all__ = ["fault", "frame", "is_number", "solved_fault"]

METRICS = ("accuracy", "agnostic_loss", "accuracy_parity")
CLIENTS = ("client_losses", "client_accuracies")
CURVES = ("train_loss", "test_loss", "test_accuracy")


def fault(spec: dict[str, Any], result: dict[str, Any]) -> str:
    """What is wrong with a result; empty if nothing is, or if the experiment is not the library's.

    Numbers may be NaN or infinite: a run can diverge.
    """
    check = _CHECKS.get(str(spec.get("experiment")))
    return "" if check is None else _fault(_settings, spec) or _fault(check, spec, result)


def solved_fault(record: dict[str, Any]) -> str:
    """What is wrong with a record of `equipoise solve --json`: its losses have shape (seeds, preferences, m)."""
    return _fault(_solved, record)


def _fault(check: Callable[..., None], *found: dict[str, Any]) -> str:
    try:
        check(*found)
    except KeyError as error:
        return f"it must have {error}; found none"
    except (TypeError, AttributeError, ValueError, IndexError, StopIteration) as error:
        return f"its result must be one of its experiment: {error}"
    return ""


def _settings(spec: dict[str, Any]) -> None:
    """Check the parts of a specification that tables and pages read."""
    for key in {"seed", "steps"} & spec.keys():
        _count(key, spec[key])
    if "preference" in spec:
        _must(isinstance(spec["preference"], list), "preference", "a list of numbers")
        _numbers("preference", spec["preference"], len(spec["preference"]))
    task = spec.get("task")
    if isinstance(task, dict):
        _count("rounds", task.get("rounds", 0))
        for key in ("fraction", "dropout"):
            _number(key, task.get("participation", {}).get(key, 0.0))


def _solved(record: dict[str, Any]) -> None:
    weights, losses, seeds = (record[key] for key in ("preferences", "losses", "seeds"))
    for key in ("problem", "method"):
        _must(isinstance(record[key], str), key, "a text")
    whole = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    _must(whole and bool(seeds), "seeds", "whole numbers")
    m = len(weights[0])
    _must(m >= 2, "preferences", "of two objectives or more")
    _matrix("preferences", weights, len(weights), m)
    _must(all(math.isfinite(x) for row in weights for x in row), "preferences", "finite")
    _must(isinstance(losses, list) and len(losses) == len(seeds), "losses", "one for every seed")
    for one in losses:
        _matrix("losses", one, len(weights), m)
    for key in ("steps", "step_size"):
        _number(key, record.get(key, 0))


def _synthetic(spec: dict[str, Any], result: dict[str, Any]) -> None:
    _count("seed", spec["seed"])
    _matrix("losses", result["losses"], spec["preferences"], 2)
    _number("hypervolume", result["hypervolume"])
    _count("diverged", result["diverged"])


def _conversions(spec: dict[str, Any], result: dict[str, Any]) -> None:
    for seed in spec["seeds"]:
        _count("seeds", seed)
    found = {name: of for name, of in result.items() if name != "diverged"}
    _must(found.keys() == spec["outputs"].keys(), "outputs", "those of its specification")
    needed = ("tch", "imbalance") if "diverged" in result else ("gap",)
    for name, of in found.items():
        _must(all(key in of for key in needed), name, f"a dictionary with {' and '.join(needed)}")
        for key, values in of.items():
            _numbers(f"{name}, {key}", values, 3 if key == "imbalance" else max(1, len(values)))
    _count("diverged", result.get("diverged", 0))


def _federated(spec: dict[str, Any], result: dict[str, Any]) -> None:
    _count("seed", spec["seed"])
    outputs, (rounds, clients, *_) = result["outputs"], frame(result)
    _numbers("round", list(rounds), max(1, len(rounds)))
    for output in outputs:
        for part in ("train", "test"):
            _scores(f"{output}, {part}", outputs[output][part], clients)
        if "first" in result:
            _scores(f"{output}, first", result["first"][output], clients)
        _must(tuple(result["curves"][output]["round"]) == rounds, output, "evaluated in the rounds of the others")
        for key in CURVES:
            _numbers(f"{output}, {key}", result["curves"][output][key], len(rounds))
    _scores("untrained", result["untrained"], clients)
    _matrix("coefficients", result["coefficients"], len(result["coefficients"]), clients)
    _numbers("archive", result["archive"], len(result["coefficients"]))
    if "round_loss" in result:
        _numbers("round_loss", result["round_loss"], len(result["round_loss"]))
    _number("seconds_per_round", result["seconds_per_round"])


def frame(result: dict[str, Any]) -> tuple[tuple[int, ...], int, int, int, frozenset[str]]:
    """What the results of all seeds of a federated run must have in common to be compared.

    Returns:
        The rounds of its curves; the numbers of its clients, of rounds with weights and of losses; its outputs.
    """
    first = next(iter(result["outputs"]))
    clients = len(result["outputs"][first]["test"]["client_losses"])
    lengths = len(result["coefficients"]), len(result.get("round_loss", []))
    return tuple(result["curves"][first]["round"]), clients, *lengths, frozenset(result["outputs"])


def _scores(name: str, of: dict[str, Any], clients: int) -> None:
    for metric in METRICS:
        _number(f"{name}, {metric}", of[metric])
    for key in CLIENTS:
        _numbers(f"{name}, {key}", of[key], clients)


def _must(condition: bool, name: str, rule: str) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError(f"{name} must be {rule}; found something else")


def is_number(value: object) -> bool:
    """Whether this is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(name: str, value: object) -> None:
    _must(is_number(value), name, "a number")


def _count(name: str, value: object) -> None:
    _must(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63, name, "a whole number")


def _numbers(name: str, values: object, length: int) -> None:
    _must(isinstance(values, list) and len(values) == length, name, f"a list of {length} numbers")
    for value in values:  # type: ignore[attr-defined]
        _number(name, value)


def _matrix(name: str, rows: object, number: int, columns: int) -> None:
    _must(isinstance(rows, list) and len(rows) == number, name, f"{number} lists of {columns} numbers")
    for row in rows:  # type: ignore[attr-defined]
        _numbers(name, row, columns)


_CHECKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "synthetic": _synthetic,
    "conversions": _conversions,
    "federated": _federated,
}
