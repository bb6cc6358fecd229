"""Errors and warnings: they name the argument, the rule and the value found."""

import sys
import warnings
from collections.abc import Callable
from types import FrameType, FunctionType

__all__ = [
    "BalanceWarning",
    "DamagedFileError",
    "EquipoiseError",
    "IdealPointWarning",
    "LimitWarning",
    "NonFiniteLossError",
    "StateMismatchError",
    "StoreError",
    "UnknownNameError",
    "require",
    "warn",
]


class EquipoiseError(ValueError):
    """Base of the library's own errors.

    Examples:
        >>> try:
        ...     eq.methods()["Tchebychef"]
        ... except eq.EquipoiseError as error:
        ...     print(type(error).__name__, isinstance(error, ValueError))
        UnknownNameError True
    """


class NonFiniteLossError(EquipoiseError):
    """A loss was NaN or infinite; the message names the objective and the step.

    Examples:
        >>> class Broken(eq.problems.VLMOP1):
        ...     def losses(self, x):
        ...         return super().losses(x) / 0
        >>> eq.solve(Broken(), [[0.5, 0.5]])
        Traceback (most recent call last):
            ...
        equipoise.errors.NonFiniteLossError: loss must be finite; found inf for objective 0 of VLMOP1, run 'run',
        preference 0 ([0.5, 0.5]), seed 0, step 1
    """


class IdealPointWarning(UserWarning):
    """A loss lies below the ideal point of Tchebycheff scalarization, where a preference loses its meaning.

    Only given if the weights differ: with a uniform preference, only differences of losses matter.

    Examples:
        >>> import warnings
        >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.2, 0.8])
        >>> losses = torch.tensor([-0.3, 1.0], requires_grad=True)
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     for _ in range(3):
        ...         scalar = mol(losses)
        >>> [one.category.__name__ for one in said]  # once
        ['IdealPointWarning']
        >>> print(said[0].message)
        losses must not lie below the ideal point, 0; found -0.3 for objective 0 in step 1. A loss below the
        ideal point turns the weight round: a larger weight then asks for less. One noisy batch does no harm; if
        most are below, the solution is not the one that the preference names: give ideal= a point below every
        loss, or add a constant to the losses; this is said once
        >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.2, 0.8], ideal=-1.0)
        >>> scalar = mol(losses)  # nothing to be said
    """


class LimitWarning(UserWarning):
    """A limit is missed and its multiplier keeps growing; the message says which, by how much, and the remedy.

    Examples:
        >>> import warnings
        >>> x = torch.nn.Linear(1, 1, bias=False)
        >>> optimizer = torch.optim.SGD(x.parameters(), lr=0.1)
        >>> mol = eq.MultiObjective(x, optimizer, {"size": 1.0}, limits={"error": 0.5})
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     for _ in range(1100):
        ...         error = (x.weight.sum() - 2) ** 2 + 1  # at least 1
        ...         mol({"size": x.weight.square().sum(), "error": error}).backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> [one.category.__name__ for one in said]  # once
        ['LimitWarning']
        >>> print(str(said[0].message)[:33])
        error must be at most 0.5; found
    """


class BalanceWarning(UserWarning):
    """An objective has had hardly any gradient, or no samples, for long; the message has its name and the remedy.

    Of a `ParetoSet`: its steps have few preferences for its nodes.

    Examples:
        >>> import warnings
        >>> model = torch.nn.Linear(1, 2)
        >>> mol = eq.MultiObjective(model, None, {"length": 0.5, "price": 0.5})
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     for _ in range(1500):
        ...         scalar = mol(model.bias * 0 + torch.tensor([20.0, 1.0]))
        >>> [one.category.__name__ for one in said]  # once
        ['BalanceWarning']
        >>> print(said[0].message)
        price has had hardly any gradient for 1000 steps: its weight λ was 0 on average, and its weighted loss is
        95 % below the largest, that of length. What to do: if length cannot fall much further (noisy labels, a
        likelihood), give its best value as ideal=; if the losses have different units, give units="start"; or raise the
        weight of price, or accept that it is better than asked for; this is said once
    """


class StateMismatchError(EquipoiseError):
    """A saved state belongs to another configuration; the message says what differs.

    Examples:
        >>> saved = eq.state.flatten(eq.OMD().init(torch.ones(2)))
        >>> eq.state.unflatten(saved, like=eq.Linear().init(torch.ones(2)))
        Traceback (most recent call last):
            ...
        equipoise.errors.StateMismatchError: state belongs to another configuration: missing [], unknown ['dual', ...]
    """


class DamagedFileError(EquipoiseError):
    """A file was altered or truncated; the message names it and says what is wrong.

    Examples:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "run.pt")
        ...     written = path.write_bytes(b"something else")
        ...     eq.train.load(path)
        Traceback (most recent call last):
            ...
        equipoise.errors.DamagedFileError: ...run.pt is damaged, or not a file of this library: ...
    """


class StoreError(EquipoiseError, OSError):
    """Copies of the parameters could not be written or read; the message says what and where.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> store = pathlib.Path(folder.name)
        >>> mol = eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5], store=store)
        >>> eq.MultiObjective(torch.nn.Linear(1, 1), None, [0.5, 0.5], store=store)
        Traceback (most recent call last):
            ...
        equipoise.errors.StoreError: store must be a folder that no other run has open; found ... open in process ...
        >>> mol.close()
        >>> folder.cleanup()
    """


class UnknownNameError(EquipoiseError, KeyError):
    """There is no method or problem of that name; the message lists similar names, if any.

    Examples:
        >>> eq.methods()["TCHH"]
        Traceback (most recent call last):
            ...
        equipoise.errors.UnknownNameError: method must be a known name; found 'TCHH'; nearest: TCH, STCH, AdaTCH
    """

    def __str__(self) -> str:
        return str(self.args[0])


def require(condition: bool, rule: str, found: object | Callable[[], object]) -> None:  # noqa: FBT001
    """Raise ValueError("{rule}; found {found}") unless the condition holds.

    Args:
        condition: What must be true.
        rule: The argument and its rule, such as "capacity must be at least 1".
        found: The value found, or a function that returns it (called only for the message).

    Examples:
        >>> from equipoise.errors import require
        >>> require(2 + 2 == 4, "the sum must be 4", 2 + 2)
        >>> require(0 > 0, "capacity must be at least 1", 0)
        Traceback (most recent call last):
            ...
        ValueError: capacity must be at least 1; found 0
    """
    if not condition:
        raise ValueError(f"{rule}; found {found() if isinstance(found, FunctionType) else found}")


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, pointing at the line in the user's code, however deep in this library or in torch the cause is.

    Args:
        text: The message.
        category: The kind of warning.

    Examples:
        >>> import warnings
        >>> from equipoise.errors import warn
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always")
        ...     warn("nothing was recorded")
        >>> print(said[0].message)
        nothing was recorded
    """
    frame: FrameType | None = sys._getframe()
    level = 0
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level + 1)


_INSIDE = {"equipoise", "torch", "contextlib"}
"""Packages that are skipped when looking for the user's line."""
