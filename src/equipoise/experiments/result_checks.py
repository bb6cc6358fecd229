"""Checks that a result has the form of its experiment's results: a cell may come from anywhere."""

import math
from collections.abc import Callable
from typing import Any

__all__ = ["fault", "frame", "is_number", "solved_fault"]

Form = Any
"""What a value must be: NUMBER, WHOLE or TEXT; (n, form): a list of n entries; {key: form}: at least these keys."""
NUMBER, WHOLE, TEXT = "a number", "a whole number", "a text"

METRICS = ("accuracy", "agnostic_loss", "accuracy_parity")
CLIENTS = ("client_losses", "client_accuracies")
CURVES = ("train_loss", "test_loss", "test_accuracy")


def fault(spec: dict[str, Any], result: dict[str, Any]) -> str:
    """What is wrong with a result; empty if nothing is, or if the experiment is not the library's.

    Numbers may be NaN or infinite: a run can diverge.
    """
    checks = {"synthetic": _synthetic, "conversions": _conversions, "federated": _federated}
    check = checks.get(str(spec.get("experiment")))
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


# ------------------------------------------------------------------------------- the form of each kind of result
def _settings(spec: dict[str, Any]) -> None:
    """Check the parts of a specification that tables and pages read."""
    _check("", spec, dict.fromkeys({"seed", "steps"} & spec.keys(), WHOLE))
    if "preference" in spec:
        _check("preference", spec["preference"], (len(spec["preference"]), NUMBER))
    task = spec.get("task")
    if isinstance(task, dict):
        _check("rounds", task.get("rounds", 0), WHOLE)
        who = {"fraction": 1.0, "dropout": 0.0, **task.get("participation", {})}
        _check("", who, {"fraction": NUMBER, "dropout": NUMBER})


def _solved(record: dict[str, Any]) -> None:
    seeds, weights, m = len(record["seeds"]), len(record["preferences"]), len(record["preferences"][0])
    _must(seeds > 0, "seeds", "given")
    _must(m >= 2, "preferences", "of two objectives or more")
    points = (weights, (m, NUMBER))
    form = {"problem": TEXT, "method": TEXT, "preferences": points, "losses": (seeds, points)}
    _check("", record, form)
    _must(all(type(seed) is int for seed in record["seeds"]), "seeds", "whole numbers")
    _must(all(math.isfinite(x) for row in record["preferences"] for x in row), "preferences", "finite")
    _check("", {"steps": 0, "step_size": 0, **record}, {"steps": NUMBER, "step_size": NUMBER})


def _synthetic(spec: dict[str, Any], result: dict[str, Any]) -> None:
    _check("", spec, {"seed": WHOLE})
    _check("", result, {"losses": (spec["preferences"], (2, NUMBER)), "hypervolume": NUMBER, "diverged": WHOLE})


def _conversions(spec: dict[str, Any], result: dict[str, Any]) -> None:
    _check("seeds", spec["seeds"], (len(spec["seeds"]), WHOLE))
    found = {name: of for name, of in result.items() if name != "diverged"}
    _must(found.keys() == spec["outputs"].keys(), "outputs", "those of its specification")
    needed = ("tch", "imbalance") if "diverged" in result else ("gap",)
    for name, of in found.items():
        _must(all(key in of for key in needed), name, f"a dictionary with {' and '.join(needed)}")
        lengths = {key: 3 if key == "imbalance" else max(1, len(values)) for key, values in of.items()}
        _check(name, of, {key: (length, NUMBER) for key, length in lengths.items()})
    _check("diverged", result.get("diverged", 0), WHOLE)


def _federated(spec: dict[str, Any], result: dict[str, Any]) -> None:
    _check("", spec, {"seed": WHOLE})
    outputs, (rounds, clients, steps, losses, _) = result["outputs"], frame(result)
    scores = {**dict.fromkeys(METRICS, NUMBER), **dict.fromkeys(CLIENTS, (clients, NUMBER))}
    curves = {"round": (max(1, len(rounds)), NUMBER), **dict.fromkeys(CURVES, (len(rounds), NUMBER))}
    form = {
        "outputs": {output: {"train": scores, "test": scores} for output in outputs},
        "first": dict.fromkeys(outputs, scores),
        "untrained": scores,
        "curves": dict.fromkeys(outputs, curves),
        "coefficients": (steps, (clients, NUMBER)),
        "archive": (steps, NUMBER),
        "round_loss": (losses, NUMBER),
        "seconds_per_round": NUMBER,
    }
    optional = {"first", "round_loss"} - result.keys()
    _check("", result, {key: of for key, of in form.items() if key not in optional})
    same = all(tuple(result["curves"][output]["round"]) == rounds for output in outputs)
    _must(same, "outputs", "evaluated in the same rounds")


def frame(result: dict[str, Any]) -> tuple[tuple[int, ...], int, int, int, frozenset[str]]:
    """What all seeds of a federated run must have in common to be compared.

    These are the rounds of the curves, the numbers of clients, of rounds with weights and of losses, and the outputs.
    """
    first = next(iter(result["outputs"]))
    clients = len(result["outputs"][first]["test"]["client_losses"])
    lengths = len(result["coefficients"]), len(result.get("round_loss", []))
    return tuple(result["curves"][first]["round"]), clients, *lengths, frozenset(result["outputs"])


# ------------------------------------------------------------------------------- forms
def _check(name: str, value: Any, form: Form) -> None:  # noqa: ANN401
    """Raise a ValueError that names the part of a value that has not its form, or the KeyError of a missing part."""
    if isinstance(form, dict):
        for key, of in form.items():
            _check(f"{name}, {key}" if name else key, value[key], of)
    elif isinstance(form, tuple):
        length, of = form
        entries = f"lists of {of[0]} numbers" if isinstance(of, tuple) else "numbers"
        _must(isinstance(value, list) and len(value) == length, name, f"a list of {length} {entries}")
        for entry in value:
            _check(name, entry, of)
    elif form == TEXT:
        _must(isinstance(value, str), name, form)
    else:
        whole = isinstance(value, int) and 0 <= value < 2**63
        _must(is_number(value) and (form == NUMBER or whole), name, form)


def _must(condition: bool, name: str, rule: str) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError(f"{name} must be {rule}; found something else")


def is_number(value: object) -> bool:
    """Whether this is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)
