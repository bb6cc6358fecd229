"""The identity of weightings, conversions, problems, tasks and settings: what determines a result, as plain JSON.

It is the key of stored results. It does not depend on `repr`, the order of fields or a class's module.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.errors import require

__all__ = ["canonical", "digest", "spec"]

LIBRARY = "equipoise."


def spec(value: object) -> Any:  # noqa: ANN401, PLR0911
    """What determines the results of a weighting, a conversion, a problem, a task or a setting, as plain JSON.

    A dataclass becomes its name and its fields. Two things change that:

    - The class attribute `revision`, 1 by default: increase it when a class with the same fields computes different
      results.
    - `metadata={"neutral": True}` on a field that was added later: it is left out while it has its default, so that
      earlier results are found.

    For a class or function outside the library, the SHA-256 of its source file is included: after an edit of that
    file, results are computed again. Modules that the file imports are not included.

    Functions and classes must be found in their module by their name. Two lambdas, or two functions made by one
    function, have the same name and source, but may compute different results.

    Args:
        value: A dataclass, a plain value, a tensor, a function, a `functools.partial`, or tuples, lists and
            dictionaries of these.

    Raises:
        ValueError: The source of a class outside the library cannot be found, or the value has no identity.

    Examples:
        >>> eq.identity.spec(eq.Average(power=4.0))
        {'class': 'Average', 'power': 4.0}
        >>> eq.identity.spec((1, None, float("inf")))
        [1, None, 'inf']
        >>> import functools
        >>> spec = eq.identity.spec(functools.partial(eq.preference.linspace, margin=0.1))
        >>> spec["function"], spec["keywords"]
        ({'function': 'linspace'}, {'margin': 0.1})
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Tensor):
        return spec(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): spec(of) for key, of in value.items()}
    if isinstance(value, tuple | list):
        return [spec(of) for of in value]
    if isinstance(value, set | frozenset):
        return sorted((spec(of) for of in value), key=canonical)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {**_named(type(value)), **{f.name: spec(getattr(value, f.name)) for f in _telling(value)}}
    if isinstance(value, functools.partial):
        return {"function": spec(value.func), "arguments": spec(value.args), "keywords": spec(value.keywords)}
    named = inspect.isfunction(value) or isinstance(value, type)
    rule = "what decides a result must be plain values, dataclasses, functions or functools.partial of these"
    require(named, rule, lambda: value)
    return _named(value)


def canonical(value: object) -> str:
    """A specification as canonical JSON text.

    Examples:
        >>> eq.identity.canonical({"b": 1, "a": [2.0]})
        '{"a":[2.0],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: object) -> str:
    """A hash of a specification: 24 hexadecimal digits.

    Examples:
        >>> eq.identity.digest({"b": 1, "a": 2}) == eq.identity.digest({"a": 2, "b": 1})
        True
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:24]


def _telling(value: Any) -> list["dataclasses.Field[Any]"]:  # noqa: ANN401
    """The fields of a dataclass that belong to its identity."""

    def default(field: "dataclasses.Field[Any]") -> object:
        return field.default_factory() if callable(field.default_factory) else field.default

    return [
        field
        for field in dataclasses.fields(value)
        if field.compare and not (field.metadata.get("neutral") and getattr(value, field.name) == default(field))
    ]


def _named(thing: Any) -> dict[str, Any]:  # noqa: ANN401
    kind = "class" if isinstance(thing, type) else "function"
    found: dict[str, Any] = {kind: thing.__qualname__}
    if (revision := getattr(thing, "revision", 1)) != 1:
        found["revision"] = revision
    if not thing.__module__.startswith(LIBRARY):
        found["source"] = _source(thing)
    require(
        _by_name(thing) is thing,
        f"a {kind} that decides a result must be defined at the top level of a file, not inside a function or as a "
        "lambda, which would hide its settings from the stored result; make the settings fields of a dataclass, or "
        "arguments of a functools.partial",
        f"{thing.__qualname__} of {thing.__module__}",
    )
    return found


def _by_name(thing: Any) -> object:  # noqa: ANN401
    """What the module of a class or a function has under its name."""
    found: object = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def _source(thing: Any) -> str:  # noqa: ANN401
    """A hash of the file that defines a class or a function; in a notebook, of its own source."""
    try:
        path = inspect.getsourcefile(thing)
        content = Path(path).read_bytes() if path and Path(path).is_file() else inspect.getsource(thing).encode()
    except (OSError, TypeError):
        raise ValueError(
            f"the source of {thing.__qualname__} must be found, so that results can be told apart after an edit: "
            "define it in a file; found no source"
        ) from None
    return hashlib.sha256(content).hexdigest()
