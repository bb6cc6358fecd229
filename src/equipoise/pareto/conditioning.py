"""`conditioned`: your own model, with the preference as an additional input."""

import copy
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise.batch import whole
from equipoise.errors import UnknownNameError, require
from equipoise.pareto.adapters import KINDS, Adapter, Layer, can_be_conditioned, spatial
from equipoise.pareto.objective_names import read_objectives
from equipoise.preference import read, tolerance, validate
from equipoise.registry import nearest

__all__ = ["Conditioned", "conditioned"]

Kind = Literal["film", "low-rank", "hyper"]
Weights = Tensor | Sequence[float] | Sequence[Sequence[float]] | Mapping[str, float] | Mapping[str, Tensor]
_FLOOR = 1e-3
"""Added to a weight before its logarithm is taken, so that the logarithm of a weight of 0 is finite."""


def conditioned(
    model: nn.Module,
    objectives: int | Sequence[str],
    *,
    layers: str | Sequence[str] | Mapping[str, Kind] | None = None,
    kind: Kind = "film",
    rank: int = 4,
    width: int = 32,
) -> "Conditioned":
    r"""Make a model take the preference as an input, without rewriting it.

    A small network turns the preference w into a code of `width` numbers, and an adapter at each layer turns the code
    into a change of the layer:

    - `"film"` scales and shifts the channels, y ← (1 + γ(w)) ∘ y + β(w): the cheapest, one multiplication and one
      addition per value;
    - `"low-rank"` changes the weights, W ← W + B diag(s(w)) A with factors of `rank`, and the bias;
    - `"hyper"` makes every weight of the layers a function of w, W ← W + ΔW(w): `width` times as many parameters, for
      small models.

    At the start no adapter changes anything: the model computes exactly what it did before. Its own parameters keep
    their values, and their names get the prefix `model.`. Train them with the adapters, or freeze them.

    Args:
        model: Any model with linear or convolution layers. It is not copied: from now on, call it through the returned
            module. Call this before you create the optimizer, and before DDP or `torch.compile`.
        objectives: Their number, or their names.
        layers: Names or patterns (`"trunk.*"`) of the layers that get an adapter; by default all linear and convolution
            layers. A mapping gives each its own kind: `{"trunk.*": "film", "heads.*": "low-rank"}`.
        kind: The kind of the adapters, unless `layers` gives one.
        rank: The rank of `"low-rank"` changes.
        width: The length of the code.

    Returns:
        A module that is called like the model, with an additional argument `preference=`.

    Raises:
        ValueError: A layer does not exist (`UnknownNameError`) or cannot be conditioned.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> x = torch.randn(5, 3)
        >>> before = model(x)
        >>> model = eq.conditioned(model, ["left", "right"], layers="0")
        >>> torch.equal(model(x, preference=[0.3, 0.7]), before)
        True
        >>> each = torch.distributions.Dirichlet(torch.ones(2)).sample((5,))  # another preference for each sample
        >>> tuple(model(x, preference=each).shape)
        (5, 2)
        >>> model(x)
        Traceback (most recent call last):
            ...
        ValueError: preference must be given in every call, as in model(x, preference=w); found none
    """
    require(isinstance(model, nn.Module), "model must be an nn.Module", type(model).__name__)
    rank, width = whole("rank", rank), whole("width", width)
    m, names = read_objectives(objectives)
    _check_not_compiled(model)
    adapters = {}
    for name, (layer, one) in _choose(model, layers, kind).items():
        require(
            KINDS[one].fits(layer),
            f"kind={one!r} must be used on {KINDS[one].only}; choose kind='film' or other layers",
            f"{_shown(name)}, {layer}",
        )
        require(
            not any(isinstance(getattr(hook, "__self__", None), _Beside) for hook in layer._forward_hooks.values()),
            "model must not be conditioned twice",
            f"an adapter beside {_shown(name)}",
        )
        adapters[name] = KINDS[one](layer, width, rank)
    like = next(p for one in adapters.values() for p in one.parameters())
    return Conditioned(model, Code(m, width).to(like.device, like.dtype), names, adapters)


class _Now(threading.local):
    """The code of the current call in this thread; none outside of calls.

    Threads that share a model, as in a server, must not see each other's preference.
    """

    def __init__(self) -> None:
        # A list, as torch.compile loses an attribute that is set on a thread-local object before a graph break.
        self.codes: list[Tensor] = []

    @property
    def code(self) -> Tensor | None:
        """The code of the innermost call."""
        return self.codes[-1] if self.codes else None

    def __reduce__(self) -> tuple[type["_Now"], tuple[()]]:
        return _Now, ()  # copies and unpickled objects are outside of any call


class _Restored(AbstractContextManager[None]):
    """Restores the code of an earlier call while a part of that call is recomputed."""

    def __init__(self, now: _Now, code: Tensor) -> None:
        self.now, self.code = now, code

    def __enter__(self) -> None:
        self.now.codes.append(self.code)

    def __exit__(self, *error: object) -> None:
        self.now.codes.pop()


class Code(nn.Module):
    """The network that turns a preference (…, m) into a code (…, width).

    Its inputs are w and log w minus its mean. Near a corner w hardly changes while the ratio of two weights does, and
    the logarithm tells such preferences apart.
    """

    def __init__(self, m: int, width: int) -> None:
        super().__init__()
        self.m = m
        self.layers = nn.Sequential(nn.Linear(2 * m, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())

    def forward(self, w: Tensor) -> Tensor:
        """Both kinds of features lie within about ±2.5 for any w."""
        precise = w.to(torch.promote_types(w.dtype, torch.float32))
        log = (precise + _FLOOR).log()
        features = torch.cat([2 * self.m * precise / (1 + self.m) - 1, (log - log.mean(-1, keepdim=True)) / 2], -1)
        weight = self.layers[0].get_parameter("weight")
        code: Tensor = self.layers(features.to(weight.dtype))
        return code


class _Beside:
    """The forward hook of a conditioned layer: applies its adapter with the code of the call.

    An object, not a closure, so that a copy of the model gets its own hooks.
    """

    def __init__(self, name: str, adapter: Adapter, now: _Now) -> None:
        self.name, self.adapter, self.now = name, adapter, now

    def hook(self, layer: Layer, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
        """The layer's output for this preference."""
        code = self.now.code
        if code is None:
            raise ValueError(
                f"layer {_shown(self.name)} must be called through the conditioned model, with a preference; found a "
                "call from elsewhere. If the backward pass computes it again (checkpointing), give "
                "context_fn=model.recomputation to torch.utils.checkpoint.checkpoint, with use_reentrant=False"
            )
        rule = "model must not use nested tensors: give nn.TransformerEncoder enable_nested_tensor=False"
        require(not output.is_nested, rule, lambda: f"one from layer {_shown(self.name)}")
        if code.ndim == 2:
            require(
                output.ndim >= 2 + spatial(layer) and output.shape[0] == code.shape[0],
                "preference for each sample must have as many rows as the first dimension of every conditioned layer",
                lambda: f"{code.shape[0]} rows, and shape {tuple(output.shape)} from {_shown(self.name)}",
            )
        return self.adapter.change(layer, args[0] if args else kwargs["input"], output, code)


class Conditioned(nn.Module):
    """A model with the preference as an additional input, made by `conditioned`.

    Call it as `model(x, preference=w)`. A w of shape (m,) applies to the whole batch; (n, m) has one row for each of
    n samples, and then every conditioned layer must have the samples in its first dimension. The preference applies
    to this call only.

    On the CPU, a preference outside the simplex is a ValueError. On an accelerator or in a compiled model, where
    checking it would synchronise with the device, the output is NaN instead.

    Attributes:
        model: The model that was given.
        code: The network that turns a preference into a code.
        adapters: The adapters by layer name, with `/` for `.` and a leading `/`.
        names: The objectives' names, or None.

    Examples:
        >>> model = eq.conditioned(torch.nn.Linear(2, 1), ["left", "right"])
        >>> x = torch.ones(4, 2)
        >>> tuple(model(x, preference={"left": 0.2, "right": 0.8}).shape)
        (4, 1)
        >>> sum(p.numel() for p in model.adapters.parameters())  # 32 × 2 and 2 for one channel
        66
    """

    def __init__(
        self, model: nn.Module, code: Code, names: tuple[str, ...] | None, adapters: Mapping[str, Adapter]
    ) -> None:
        super().__init__()
        self.model, self.code, self.names = model, code, names
        self._now = _Now()
        self.adapters = nn.ModuleDict({f"/{name.replace('.', '/')}": one for name, one in adapters.items()})
        self._attached = [
            (beside, model.get_submodule(beside.name).register_forward_hook(beside.hook, with_kwargs=True))
            for beside in (_Beside(name, one, self._now) for name, one in adapters.items())
        ]
        self.train(model.training)

    def forward(self, *args: Any, preference: Weights | None = None, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """The model's output for this preference.

        Args:
            *args: Passed to the model.
            preference: w (m,), or (n, m) for a batch of n samples. If the objectives have names, also a mapping from
                them to numbers, or to tensors (n,).
            **kwargs: Passed to the model.
        """
        self._now.codes.append(self.code(self._read(preference)))
        try:
            return self.model(*args, **kwargs)
        finally:
            self._now.codes.pop()

    def at(self, preference: Weights) -> nn.Module:
        """A plain copy of the model, with the adapters merged into its weights for one preference.

        It runs at the cost of the original model and takes no `preference=`.

        Args:
            preference: w (m,).

        Examples:
            >>> model = eq.conditioned(torch.nn.Linear(2, 1), 2)
            >>> model.at([0.3, 0.7])
            Linear(in_features=2, out_features=1, bias=True)
        """
        w = self._read(preference)
        require(w.ndim == 1, "preference must have shape (m,) to be merged", lambda: tuple(w.shape))
        twin = copy.deepcopy(self)
        with torch.no_grad():
            code = twin.code(w)
            for beside, handle in twin._attached:
                handle.remove()
                layer: Any = twin.model.get_submodule(beside.name)
                plain = "weight" in layer._parameters
                rule = "layers must have an ordinary weight to be merged"
                require(plain, rule, f"{_shown(beside.name)}, a {type(layer).__name__}")
                weight, bias = beside.adapter.merged(layer, code)
                layer.weight = nn.Parameter(weight, requires_grad=layer.weight.requires_grad)
                layer.bias = nn.Parameter(bias, requires_grad=layer.weight.requires_grad)
        return twin.model

    def recomputation(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The `context_fn` for `torch.utils.checkpoint.checkpoint`, for parts of the model that are recomputed.

        The backward pass then recomputes them with the same preference. Requires `use_reentrant=False`. It is not
        needed if the whole conditioned model is checkpointed, with the preference among the arguments.

        Examples:
            >>> from torch.utils.checkpoint import checkpoint
            >>> class Block(torch.nn.Module):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.inner = torch.nn.Linear(2, 2)
            ...     def forward(self, x):
            ...         return checkpoint(self.inner, x, use_reentrant=False, context_fn=model.recomputation)
            >>> model = eq.conditioned(Block(), 2)
            >>> model(torch.ones(3, 2), preference=[0.3, 0.7]).sum().backward()
        """
        code = self._now.code
        require(code is not None, "recomputation must be asked for while the conditioned model is called", "no call")
        assert code is not None  # noqa: S101
        return nullcontext(), _Restored(self._now, code)

    def extra_repr(self) -> str:
        """The objectives."""
        return f"objectives={self.code.m if self.names is None else list(self.names)}"

    def _read(self, preference: Weights | None) -> Tensor:
        """The preference, checked and moved to the model's device."""
        require(preference is not None, "preference must be given in every call, as in model(x, preference=w)", "none")
        if isinstance(preference, Mapping):
            rule = "preference must be numbers in order, or have exactly the names of the objectives"
            fits = self.names is not None and set(preference) == set(self.names)
            require(fits, f"{rule}, {list(self.names or [])}", list(preference))
            preference = _stacked([read(preference[name]) for name in self.names or ()])
        m = self.code.m
        w = read(preference)
        require(
            w.ndim in {1, 2} and w.shape[-1] == m,
            f"preference must have shape ({m},) for the whole batch, or (n, {m}) for each sample",
            lambda: tuple(w.shape),
        )
        device = self.code.layers[0].get_parameter("weight").device
        if w.device.type == "cpu" and not torch.compiler.is_compiling():
            return validate(w, m).to(device)
        w = w if w.is_floating_point() else w.to(torch.get_default_dtype())
        sound = (w >= 0).all(-1, keepdim=True) & ((w.sum(-1, keepdim=True) - 1).abs() <= tolerance(w))
        return torch.where(sound, w, torch.nan).to(device)


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    """One weight for each objective, () or (n,), as a preference (m,) or (n, m)."""
    shapes = [tuple(weight.shape) for weight in weights]
    rule = "preference by name must have one number for each objective, or one for each sample"
    require(len(set(shapes)) == 1 and len(shapes[0]) <= 1, rule, lambda: f"shapes {shapes}")
    return torch.stack(list(weights), -1)


def _check_not_compiled(model: nn.Module) -> None:
    # Compiled code ignores hooks that are added later: the preference would have no effect, without an error.
    for name, module in model.named_modules():
        require(
            not hasattr(module, "_orig_mod") and not isinstance(module, torch.jit.ScriptModule),
            "model must be conditioned before it is compiled, wrapped or scripted",
            f"{type(module).__name__} at {_shown(name)}",
        )
        require(
            not isinstance(module, nn.parallel.DistributedDataParallel),
            "model must be conditioned before it is wrapped",
            f"{type(module).__name__} at {_shown(name)}",
        )


def _choose(
    model: nn.Module, layers: str | Sequence[str] | Mapping[str, Kind] | None, kind: Kind
) -> dict[str, tuple[Any, Kind]]:
    """The layers by name, in the model's order, each with the kind of its adapter."""
    modules = dict(model.named_modules())
    fit = [name for name, module in modules.items() if can_be_conditioned(module)]
    require(bool(fit), "model must have a linear or convolution layer", lambda: type(model).__name__)
    chosen: dict[str, Kind] = {}
    for pattern, one in _asked(layers, kind).items():
        require(one in KINDS, f"kind must be one of {', '.join(map(repr, KINDS))}", repr(one))
        for name in _matching(pattern, modules, fit):
            clash = chosen.setdefault(name, one) != one
            require(not clash, "layers must give each layer one kind", f"{chosen[name]!r} and {one!r} for {name!r}")
    return {name: (modules[name], chosen[name]) for name in fit if name in chosen}


def _asked(layers: str | Sequence[str] | Mapping[str, Kind] | None, kind: Kind) -> Mapping[str, Kind]:
    """Patterns with their kinds."""
    if isinstance(layers, Mapping):
        asked = layers
    else:
        asked = dict.fromkeys(["*"] if layers is None else [layers] if isinstance(layers, str) else layers, kind)
    require(bool(asked), "layers must name at least one layer, or be None for all", layers)
    return asked


def _matching(pattern: str, modules: Mapping[str, nn.Module], fit: Sequence[str]) -> list[str]:
    """The layers that match a name or a pattern."""
    if pattern in modules:
        inside = any(name.startswith(f"{pattern}.") for name in fit)
        rule = f"layers must be linear or convolution layers{f'; its layers are {pattern}.*' if inside else ''}"
        require(pattern in fit, rule, f"{_shown(pattern)}, a {type(modules[pattern]).__name__}")
        return [pattern]
    if found := [name for name in fit if fnmatchcase(name, pattern)]:
        return found
    near = nearest(pattern, fit) or ", ".join(map(_shown, fit))
    rule = "layers must be names or patterns of linear or convolution layers"
    raise UnknownNameError(f"{rule}; found {pattern!r}; nearest: {near}")


def _shown(name: str) -> str:
    return repr(name) if name else "the model itself"
