"""Batches drawn by λ: domains with a larger weight are drawn more often, and gradients stay unbiased."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from equipoise.batch import whole
from equipoise.errors import StateMismatchError, require, warn
from equipoise.train.checkpoint import check_configuration, describe
from equipoise.train.distributed import place
from equipoise.train.groups import Groups, read_groups, read_membership
from equipoise.train.mixture import Numbers, allot, bounded

if TYPE_CHECKING:
    from equipoise.train.multi_objective import MultiObjective

__all__ = ["DomainSampler", "DomainStreams", "Draw"]

LEAST = 1e-12
"""Probabilities are raised to at least this before the bounds are applied."""
BLOCK, ROOM = 32, 2**20
"""Steps whose random parts are made at once: between two training steps one takes four times as long. Fewer if a step
has so many samples that the block would have more than this many numbers."""
UNFOLLOWED = 1000
"""Steps drawn without a call of `follow` before a warning."""


class Draw(NamedTuple):
    """The domain and weight of a drawn sample; tensors of shape (n,) once a batch is collated.

    Examples:
        >>> sampler = eq.DomainSampler([0, 0, 0, 1], batch_size=3, base=[0.5, 0.5])
        >>> batch = next(iter(sampler))  # of 3 samples 1.5 of each domain are expected
        >>> sorted({(draw.domain, round(draw.weight, 2)) for number, draw in batch})
        [(0, 0.67), (1, 1.33)]
    """

    domain: Any
    """Its domain, a whole number in 0..m−1. With overlapping domains, the one it was drawn for."""
    weight: Any
    """k/(n q): the samples of this domain in the batch, over those expected with the q they were drawn with."""


def _is_plain(x: Tensor) -> bool:
    """Whether an array can hold it."""
    known = x.dtype in {torch.int64, torch.int32, torch.float32, torch.float64}
    return known and x.device.type == "cpu" and x.layout == torch.strided and not x.requires_grad


def _pack(draw: Draw) -> tuple[Callable[..., Draw], tuple[Any, ...]]:
    """Pass tensors to another process by value: two small ones in shared memory take longer than drawing the batch."""
    plain = tuple(type(x) is Tensor and _is_plain(x) for x in draw)
    return _unpack, (plain, *(x.numpy() if by_value else x for x, by_value in zip(draw, plain, strict=True)))


def _unpack(plain: tuple[bool, ...], *fields: Any) -> Draw:
    """Undo `_pack`."""
    return Draw(*(torch.from_numpy(x) if by_value else x for x, by_value in zip(fields, plain, strict=True)))


ForkingPickler.register(Draw, _pack)


class Mixture(NamedTuple):
    """The settings that batches are drawn with."""

    explore: float
    base: Numbers
    """Positive, of sum 1, (m,)."""
    batch_size: int
    accumulate: int
    steps: int
    """Optimizer steps in an epoch."""
    repeats: float | None
    seed: int
    world_size: int

    @property
    def places(self) -> int:
        """Samples of a step, over its batches and all ranks."""
        return self.batch_size * self.accumulate * self.world_size


class _Step(NamedTuple):
    """A drawn step: what a resumed run needs to draw it again."""

    target: Numbers
    taken: NDArray[np.int64]
    read: list[int]


Batch = list[tuple[int, Draw]]
"""The samples of one batch of this rank, by number, each with its draw."""


class _Domains:
    """The base of sampler and streams: decides which domain each sample of a step is drawn from.

    Args:
        mixture: The settings.
        sizes: Samples of each domain, (m,); None: not known.
        rank: Which part of every batch this process takes.
    """

    def __init__(self, mixture: Mixture, sizes: NDArray[np.int64] | None, rank: int) -> None:
        self.mixture, self.rank, self._sizes = mixture, rank, sizes
        m = len(mixture.base)
        self._target: Numbers = mixture.base
        self._drawn = 0
        self._taken = np.zeros(m, np.int64)
        self._before = self._taken
        """Steps taken when the epoch began."""
        self._open: deque[_Step] = deque()
        """Steps that are drawn but not yet followed by an optimizer step."""
        self._again: deque[Numbers] = deque()
        """Targets of steps drawn ahead by a saved run or in an epoch that was left early."""
        self._read: list[int] = []
        """Samples that this rank has read of each stream, for those that have streams."""
        self._follows = False
        self._block, self._chances = -1, list[tuple[float, NDArray[np.int64]]]()
        """The number of a block of steps, and their random parts."""

    def follow(self, source: "MultiObjective | Tensor") -> None:
        """Draw by the coefficients of this run from now on. Call it once per optimizer step.

        Call it right after `mol(...)`: on an accelerator it then uses the coefficients of the previous step, without
        synchronising with the device. After `optimizer.step()` it uses those of this step.

        Args:
            source: The run; or coefficients of the objectives, non-negative, (m,). With a uniform preference these are
                λ.
        """
        coefficients = source if isinstance(source, Tensor) else source._run.last_coefficients()
        m = len(self.mixture.base)
        require(coefficients.shape == (m,), f"coefficients must have shape ({m},)", lambda: tuple(coefficients.shape))
        given = coefficients.tolist()
        sound = all(0.0 <= x < math.inf for x in given) and any(given)
        require(sound, "coefficients must be non-negative and finite, and not all 0", given)
        rule = "follow must be called once for every step that was drawn, after it"
        require(len(self._open) > 0, rule, lambda: f"{self._drawn} steps drawn, and followed already")
        self._open.popleft()
        self._follows = True
        total = math.fsum(given)
        self._target = np.array([x / total for x in given])

    @property
    def probabilities(self) -> Tensor:
        """q, the probabilities that the next step is drawn with, (m,)."""
        return torch.from_numpy(self._probabilities(self._again[0] if self._again else self._target))

    def _probabilities(self, target: Numbers) -> Numbers:
        """(1 − ε) p + ε b, bounded: each domain has a sample in every step, and none exceeds its repeats."""
        rule = self.mixture
        pairs = zip(target.tolist(), rule.base.tolist(), strict=True)  # loops as in `allot`
        raised = [max((1.0 - rule.explore) * p + rule.explore * b, LEAST) for p, b in pairs]
        total, low = math.fsum(raised), 1.0 / rule.places
        q = np.array([x / total for x in raised])
        if rule.repeats is None or self._sizes is None:
            return q if min(raised) >= low * total else bounded(q, low, 1.0)
        if self._drawn % rule.steps == 0:
            self._before = self._taken
        left = np.floor(rule.repeats * self._sizes) - (self._taken - self._before)
        return bounded(q, low, np.minimum(left / ((rule.steps - self._drawn % rule.steps) * rule.places), 1.0))

    def _draw(self) -> list[Batch]:
        """The batches of the next step, for this rank."""
        rule, m = self.mixture, len(self.mixture.base)
        target = self._again.popleft() if self._again else self._target
        q = self._probabilities(target)
        self._open.append(_Step(target, self._taken, list(self._read)))
        if self._drawn == UNFOLLOWED and len(self._open) > UNFOLLOWED and rule.explore < 1:
            found = f"follow was not called in {UNFOLLOWED} steps, and batches are drawn by base alone"
            warn(f"{found}: call follow(mol) in every step, or give explore=1")
        shift, order = self._chance()
        numbers = allot(rule.places * q, shift)
        shape = rule.accumulate, rule.batch_size, rule.world_size
        domains = np.repeat(np.arange(m), numbers)[order].reshape(shape)
        samples = self._pick(numbers)[order].reshape(shape)
        self._taken = self._taken + numbers
        self._drawn += 1
        batches = []
        for mine, chosen in zip(domains, samples, strict=True):
            counts = np.bincount(mine.ravel(), minlength=m).tolist()
            draws = [Draw(i, k / (mine.size * x)) for i, (k, x) in enumerate(zip(counts, q.tolist(), strict=True))]
            drawn = [draws[domain] for domain in mine[:, self.rank].tolist()]
            batches.append(list(zip(chosen[:, self.rank].tolist(), drawn, strict=True)))
        return batches

    def _chance(self) -> tuple[float, NDArray[np.int64]]:
        """The random part of the next step: the shift of `allot`, and the order of its places, (n,)."""
        size = max(1, min(BLOCK, ROOM // self.mixture.places))
        block, place = divmod(self._drawn, size)
        if self._block != block:
            steps = range(size * block, size * (block + 1))
            made = [np.random.default_rng((self.mixture.seed, 0, step)) for step in steps]
            self._block, self._chances = block, [(one.random(), one.permutation(self.mixture.places)) for one in made]
        return self._chances[place]

    def _pick(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The given number of samples of each domain, domain by domain, (n,)."""
        return np.zeros(int(numbers.sum()), np.int64)

    def _epoch(self) -> Iterator[Batch]:
        """The rest of an epoch; after an early exit it restarts at the first step that was not taken."""
        if self._follows and self._drawn % self.mixture.steps != 0 and self._open:
            self._again.extendleft(step.target for step in reversed(self._open))
            self._drawn -= len(self._open)
            self._taken = self._open[0].taken
        if self._follows:
            self._open.clear()
        while True:
            yield from self._draw()
            if self._drawn % self.mixture.steps == 0:
                return

    def __len__(self) -> int:
        """Batches of a whole epoch, even when resuming within one."""
        return self.mixture.steps * self.mixture.accumulate

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state after the last step that `follow` was called for: tensors, numbers and text.

        Prefetched batches are not lost: a run resumed with the same number of workers draws them again, with the
        probabilities they were drawn with.
        """
        m = len(self.mixture.base)
        taken = self._open[0].taken if self._open else self._taken
        ahead = [*(step.target for step in self._open), *self._again]
        before = np.minimum(self._before, taken)
        return {
            "configuration": self._configuration(),
            "step": self._drawn - len(self._open),
            "target": torch.from_numpy(self._target.copy()),
            "ahead": torch.from_numpy(np.array(ahead, np.float64).reshape(-1, m)),
            "taken": torch.from_numpy(taken.copy()),
            "before": torch.from_numpy(before.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: What `state_dict` returned.

        Raises:
            StateMismatchError: If it belongs to other domains or settings; the message names them.
        """
        expected = {"configuration", "step", "target", "ahead", "taken", "before"}
        if set(state) != expected:
            raise StateMismatchError(f"state must have the entries {sorted(expected)}; found {sorted(state)}")
        check_configuration(state["configuration"], self._configuration())
        self._drawn, self._open = int(state["step"]), deque()
        self._target, self._again = state["target"].numpy().copy(), deque(state["ahead"].numpy().copy())
        self._taken, self._before = state["taken"].numpy().copy(), state["before"].numpy().copy()

    def _configuration(self) -> dict[str, str]:
        sizes = None if self._sizes is None else self._sizes.tolist()
        settings = {**self.mixture._asdict(), "base": self.mixture.base.tolist()}
        return describe(sizes=sizes, **settings)


class DomainSampler(_Domains, Sampler[Batch]):
    r"""Batches for a DataLoader whose domains follow the coefficients of the run.

    A step with n samples draws each domain i with probability

        q_i = (1 − ε) p_i + ε b_i,    p = c/Σc,

    where c are the coefficients last given to `follow` (λ, with a uniform preference). A sample carries the weight
    k_i/(n q_i), where k_i is the number of samples of its domain in the batch; `group_losses(..., weights=...)`
    multiplies gradients by it. Because E k_i = n q_i, the mean of Σ c_i (k_i/(n q_i)) ∇f̂_i is exactly Σ c_i ∇f_i for
    every q. This holds even if λ moves while a batch is prefetched, since the weight uses the q that the batch was
    drawn with. The variance is smallest near q ∝ c.

    k_i is n q_i rounded up or down, and at least 1: every domain is in every step. Each domain is traversed in random
    order, without replacement, again and again. The ranks of a process group share one order; each takes its part of
    every batch.

    Args:
        domains: The domain of every sample, whole numbers in 0..m−1, (n,); or the fraction of a sample that belongs to
            each domain, in [0, 1], (n, m). A sample of several domains is drawn for one of them and counts for it. For
            other ids, such as text, take `numpy.unique(ids, return_inverse=True)[1]`.
        batch_size: Samples of a batch on each rank.
        m: The number of domains; by default as many as `domains` shows.
        explore: ε in [0, 1], the part of q that does not follow the coefficients. 1: q = base.
        base: b, positive, one number per domain; by default uniform.
        repeats: The most passes through a domain in one epoch. It bounds q; the gradients stay unbiased.
        steps: Steps of an epoch; by default as many as draw n samples.
        accumulate: Batches per optimizer step (gradient accumulation).
        seed: The seed of the order.
        rank: Which part of every batch this process takes; by default its rank in the process group, if there is one.
        world_size: In how many parts batches are divided; by default the number of ranks.

    Raises:
        ValueError: If a domain has no samples, if a step has fewer samples than there are domains, or if `repeats`
            leaves a domain fewer samples than the epoch has steps.

    Examples:
        >>> torch.manual_seed(0)
        <torch._C.Generator ...>
        >>> domains = torch.tensor([0] * 900 + [1] * 100)
        >>> x = torch.randn(1000, 2)
        >>> y = x[torch.arange(1000), domains]  # each domain looks at another input
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> mol = eq.MultiObjective(model, optimizer, [0.5, 0.5])
        >>> sampler = eq.DomainSampler(domains, batch_size=20)
        >>> data = sampler.with_draws(torch.utils.data.TensorDataset(x, y))
        >>> for (inputs, targets), draw in torch.utils.data.DataLoader(data, batch_sampler=sampler):
        ...     values = (model(inputs).squeeze(1) - targets).square()
        ...     scalar = mol(*eq.group_losses(values, draw.domain, m=2, weights=draw.weight))
        ...     sampler.follow(mol)
        ...     scalar.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> bool((sampler.probabilities >= 0.099).all())  # ε/m
        True
    """

    def __init__(
        self,
        domains: Groups,
        batch_size: int,
        m: int | None = None,
        *,
        explore: float = 0.2,
        base: Sequence[float] | Tensor | None = None,
        repeats: float | None = None,
        steps: int | None = None,
        accumulate: int = 1,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        members, parts, n = read_membership(read_groups(domains, "domains").detach().cpu(), m, "domains")
        self._members = [one.numpy() for one in members]
        self._parts = [None if one is None else one.double().numpy() for one in parts]
        sizes = [
            len(one) if part is None else max(round(float(part.sum())), 1)
            for one, part in zip(self._members, self._parts, strict=True)
        ]
        rank, world_size = place(rank, world_size)
        mixture = _mixture(len(sizes), batch_size, explore, base, accumulate, seed, world_size)
        steps = whole("steps", max(-(-n // mixture.places), 1) if steps is None else steps)
        _check_repeats(repeats, sizes, steps, mixture.places)
        super().__init__(mixture._replace(steps=steps, repeats=repeats), np.array(sizes), rank)
        self._orders: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch, or the next one if it is over."""
        return self._epoch()

    def with_draws(self, data: Dataset[Any]) -> Dataset[tuple[Any, Draw]]:
        """A data set for the DataLoader: each sample comes with its `Draw`."""
        return _WithDraws(data)

    def _pick(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next samples of each domain, pass after pass."""
        assert self._sizes is not None  # noqa: S101
        found = []
        states = zip(self._taken.tolist(), numbers.tolist(), self._sizes.tolist(), strict=True)
        for domain, (first, count, size) in enumerate(states):
            while count > 0:
                number, place = divmod(first, size)
                part = self._pass(domain, number, size)[place : place + count]
                found.append(part)
                first, count = first + len(part), count - len(part)  # noqa: PLW2901
        return np.concatenate(found)

    def _pass(self, domain: int, number: int, size: int) -> NDArray[np.int64]:
        """The order of a pass through a domain, (size,)."""
        if self._orders.get(domain, (-1,))[0] != number:
            generator = np.random.default_rng((self.mixture.seed, 1 + domain, number))
            self._orders[domain] = number, self._shuffled(domain, size, generator)
        return self._orders[domain][1]

    def _shuffled(self, domain: int, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """One pass through a domain: each member once, or on average as often as its fraction says, (size,)."""
        order = generator.permutation(len(self._members[domain]))
        part = self._parts[domain]
        if part is not None:  # systematic sampling: equidistant points on the cumulated fractions
            ends = np.cumsum(part[order])
            points = (generator.random() + np.arange(size) / size) % 1.0 * ends[-1]
            order = order[np.minimum(np.searchsorted(ends, points, side="right"), len(order) - 1)]
        found: NDArray[np.int64] = self._members[domain][order]
        return found


class _WithDraws(Dataset[tuple[Any, Draw]]):
    """Samples with their draws, for indices (number, draw)."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __getitem__(self, index: tuple[int, Draw]) -> tuple[Any, Draw]:
        _check_index(index)
        return self.data[index[0]], index[1]

    def __getitems__(self, batch: Batch) -> list[tuple[Any, Draw]]:
        """A whole batch; read at once where the data set can do so."""
        for index in batch:
            _check_index(index)
        samples = read_samples(self.data, [number for number, _ in batch])
        return [(sample, draw) for sample, (_, draw) in zip(samples, batch, strict=True)]

    def __len__(self) -> int:
        return len(cast("Sized", self.data))


def read_samples(data: Any, numbers: list[int]) -> Sequence[Any]:  # noqa: ANN401
    """Samples of a data set; at once where it can do so.

    Args:
        data: The data set.
        numbers: Those of the samples.

    Raises:
        ValueError: If its `__getitems__` does not return a list of as many samples.
    """
    at_once = getattr(data, "__getitems__", None)
    if at_once is None:
        return [data[number] for number in numbers]
    found = at_once(numbers)
    sound = not isinstance(found, Mapping | str) and len(found) == len(numbers)
    rule = f"__getitems__ of {type(data).__name__} must return a list with one sample per index"
    require(sound, rule, lambda: f"{type(found).__name__} for {len(numbers)} indices")
    return found  # type: ignore[no-any-return]


def _check_index(index: object) -> None:
    rule = "indices must be those of a DomainSampler: DataLoader(sampler.with_draws(data), batch_sampler=sampler)"
    require(isinstance(index, tuple), rule, lambda: repr(index))


class DomainStreams(_Domains, IterableDataset[Any]):
    """Batches from several streams, mixed by the coefficients of the run as in a `DomainSampler`.

    Iterating gives collated batches `(samples, Draw)`, with or without `DataLoader(streams, batch_size=None)`. A
    stream that ends is restarted. With several ranks, give each its own part of every stream.

    Args:
        streams: One iterable of samples per domain. A resumed run skips the samples that it has seen.
        batch_size: As in `DomainSampler`.
        steps: Steps of an epoch.
        explore: As in `DomainSampler`.
        base: As in `DomainSampler`.
        repeats: The most passes through a stream. The epoch ends when a stream would need one more.
        accumulate: As in `DomainSampler`.
        seed: The seed of the order in which streams are read.
        collate: Makes a batch from a list of `(sample, Draw)`.
        rank: As in `DomainSampler`.
        world_size: As in `DomainSampler`.

    Raises:
        ValueError: If a stream has no samples, or if iterated in a worker process: give each stream its own workers
            instead.

    Examples:
        >>> streams = eq.DomainStreams([range(0, 100), range(100, 110)], batch_size=4, steps=3)
        >>> [sorted(samples.tolist()) for samples, draw in streams]
        [[0, 1, 100, 101], [2, 3, 102, 103], [4, 5, 104, 105]]
    """

    def __init__(
        self,
        streams: Sequence[Iterable[Any]],
        batch_size: int,
        *,
        steps: int,
        explore: float = 0.2,
        base: Sequence[float] | Tensor | None = None,
        repeats: int | None = None,
        accumulate: int = 1,
        seed: int = 0,
        collate: Callable[[list[tuple[Any, Draw]]], Any] = default_collate,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        require(len(streams) >= 1, "streams must hold at least one stream", "none")
        steps = whole("steps", steps)
        sound = repeats is None or (type(repeats) is int and repeats >= 1)
        require(sound, "repeats must be None or a whole number of at least 1", repeats)
        rank, world_size = place(rank, world_size)
        mixture = _mixture(len(streams), batch_size, explore, base, accumulate, seed, world_size)
        super().__init__(mixture._replace(steps=steps, repeats=repeats), None, rank)
        self._streams, self._collate = list(streams), collate
        self._read = [0] * len(streams)
        self._readers: list[Iterator[Any]] | None = None
        self._passes = [1] * len(streams)

    def __iter__(self) -> Iterator[Any]:
        """The rest of an epoch."""
        rule = "streams must be read in the main process: λ does not reach worker processes; give num_workers=0"
        require(get_worker_info() is None, rule, "a worker process")
        if self._readers is None:
            self._readers = [iter(stream) for stream in self._streams]
            for domain, count in enumerate(self._read):
                for _ in range(count):
                    self._next(domain)
        for batch in self._epoch():  # after an early exit samples are not read twice
            rows = []
            for _, draw in batch:
                sample = self._next(draw.domain)
                if sample is _END:
                    return
                self._read[draw.domain] += 1
                rows.append((sample, draw))
            yield self._collate(rows)

    def state_dict(self) -> dict[str, Any]:
        """See `DomainSampler`; also holds how many samples this rank has read of each stream."""
        return {**super().state_dict(), "read": list(self._open[0].read if self._open else self._read)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `DomainSampler`; the streams are restarted and the samples already read are skipped."""
        if "read" not in state:
            raise StateMismatchError(f"state must have the entry read, as of DomainStreams; found {sorted(state)}")
        super().load_state_dict({key: x for key, x in state.items() if key != "read"})
        self._read, self._readers = list(state["read"]), None
        self._passes = [1] * len(self._streams)

    def _next(self, domain: int) -> Any:  # noqa: ANN401
        """The next sample of a stream, or `_END` when its passes are used up."""
        assert self._readers is not None  # noqa: S101
        sample = next(self._readers[domain], _END)
        if sample is not _END:
            return sample
        if self.mixture.repeats is not None and self._passes[domain] >= self.mixture.repeats:
            return _END
        self._passes[domain] += 1
        self._readers[domain] = iter(self._streams[domain])
        sample = next(self._readers[domain], _END)
        rule = "streams must have samples, and begin again when iterated again"
        require(sample is not _END, rule, f"none in {domain}")
        return sample


_END = object()
"""Marks the end of a stream."""


def _mixture(
    m: int,
    batch_size: int,
    explore: float,
    base: Sequence[float] | Tensor | None,
    accumulate: int,
    seed: int,
    world_size: int,
) -> Mixture:
    """Validated settings; steps and repeats are set later."""
    batch_size, accumulate = whole("batch_size", batch_size), whole("accumulate", accumulate)
    require(0.0 <= explore <= 1.0, "explore must lie in [0, 1]", explore)
    seed = whole("seed", seed, least=0)
    b = torch.ones(m, dtype=torch.float64) if base is None else torch.as_tensor(base, dtype=torch.float64).cpu()
    require(b.shape == (m,), f"base must have one number per domain, {m}", lambda: tuple(b.shape))
    sound = bool(torch.isfinite(b).all()) and bool((b > 0).all())
    require(sound, "base must be positive and finite", lambda: [*b.tolist()])
    places = batch_size * accumulate * world_size
    rule = f"a step must have a place for each of the {m} domains: raise batch_size or accumulate"
    require(places >= m, rule, f"{batch_size} · {accumulate} batches · {world_size} ranks = {places} places")
    return Mixture(explore, (b / b.sum()).numpy(), batch_size, accumulate, 1, None, seed, world_size)


def _check_repeats(repeats: float | None, sizes: Sequence[int], steps: int, places: int) -> None:
    if repeats is None:
        return
    require(repeats > 0, "repeats must be positive", repeats)
    least = int(np.argmin(sizes))
    rule = "repeats must leave every domain a sample in each step of an epoch: raise it, or take fewer steps"
    found = f"{repeats} · {sizes[least]} samples of domain {least} for {steps} steps"
    require(int(repeats * sizes[least]) >= steps, rule, found)
    rule = "repeats must leave enough samples for an epoch: raise it, or take fewer steps"
    enough = sum(int(repeats * size) for size in sizes) >= steps * places
    require(enough, rule, lambda: f"{repeats} · {sum(sizes)} for {steps * places}")
