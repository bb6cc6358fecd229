"""What bad input gets: a ValueError that names the argument, the rule and the value found."""

from collections.abc import Callable
from types import FunctionType

__all__ = ["EquipoiseError", "NonFiniteLossError", "StateMismatchError", "UnknownNameError", "require"]


class EquipoiseError(ValueError):
    """Base of the library's own errors."""


class NonFiniteLossError(EquipoiseError):
    """A loss was NaN or infinite; the message names the objective and the step."""


class StateMismatchError(EquipoiseError):
    """A saved state belongs to another configuration; the message says what differs."""


class UnknownNameError(EquipoiseError, KeyError):
    """A method or problem of that name is not known; the message lists the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0])


def require(condition: bool, rule: str, found: object | Callable[[], object]) -> None:  # noqa: FBT001
    """Raise ValueError("{rule}; found {found}") unless the condition holds.

    Args:
        condition: What must be true.
        rule: The argument and its rule, such as "capacity must be at least 1".
        found: The value found, or a function that gives it (called only for the message).
    """
    if not condition:
        raise ValueError(f"{rule}; found {found() if isinstance(found, FunctionType) else found}")
