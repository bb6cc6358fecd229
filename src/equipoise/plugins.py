"""Methods from outside the library: `module:name`, or an entry point of an installed package."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

from equipoise.conversion import Last
from equipoise.errors import require
from equipoise.registry import Method, methods, unknown

__all__ = ["GROUP", "find"]

GROUP = "equipoise.methods"
"""The entry-point group of packages that provide methods."""


def find(text: str) -> tuple[str, Method]:
    """A method from outside the library, and its name.

    Args:
        text: `module:name`, or the name of an entry point in the group `equipoise.methods`. It must name a `Method`; a
            weighting (the answer is then the last iterate); a class of either that needs no arguments; or a function
            that returns one of these. Modules are also looked for in the current folder.

    Raises:
        ValueError: There is no such module or name, or it is none of these.

    Examples:
        >>> eq.plugins.find("equipoise.weighting:Linear")
        ('Linear', Method(weighting=Linear(ideal=0.0), conversion=Last(), transform=None))
    """
    if ":" not in text:
        points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
        if text not in points:
            raise unknown("method must be a known name, or module:name of your own", text, [*methods(), *points])
        return text, _method(points[text].load(), text)
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise ValueError(f"module must be one that can be imported from {here}; found none {module_name!r}") from None
    found = getattr(module, name, None)
    known = [key for key in vars(module) if not key.startswith("_")]
    if found is None:
        raise unknown(f"{module_name} must have the name", name, known)
    return name, _method(found, text)


def _method(found: object, text: str) -> Method:
    if isinstance(found, type) or (callable(found) and not hasattr(found, "update")):
        try:
            found = found()
        except TypeError as error:
            raise ValueError(f"{text} must need no arguments, or be an instance; found {error}") from None
    if isinstance(found, Method):
        return found
    sound = all(hasattr(found, name) for name in ("init", "update", "needs"))
    require(sound, f"{text} must be a Method or a weighting", lambda: found)
    return Method(found, Last())  # type: ignore[arg-type]
