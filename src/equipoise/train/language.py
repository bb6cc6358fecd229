"""Losses of language models by domain: means over tokens, with packed rows and gradient accumulation."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from equipoise.batch import whole
from equipoise.errors import require
from equipoise.train.distributed import Group, ranks
from equipoise.train.groups import check_range, means, weigh_gradient, with_counts

__all__ = ["count_tokens", "step_shares", "token_losses"]

IGNORED = -100
"""The label of tokens without a loss, as in `torch.nn.functional.cross_entropy`."""


def token_losses(
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    m: int,
    *,
    weights: Tensor | None = None,
    share: Tensor | None = None,
    ignore_index: int = IGNORED,
) -> tuple[Tensor, Tensor]:
    """The mean loss per token of every domain of a batch, for `mol(losses, counts)`.

    f_i = Σ ℓ / n_i over the n_i tokens of domain i that have a label. Does not synchronise with the device.

    Args:
        logits: The logits of the next token, (n, t, vocabulary).
        labels: The next token, (n, t). For a model that reads `tokens`, pass `logits[:, :-1]` and `tokens[:, 1:]`.
        domains: The domain of every row, whole numbers in 0..m−1, (n,); or of every token, (n, t), where documents of
            several domains are packed in one row. Tokens with an ignored label may have any number.
        m: The number of domains.
        weights: Factors of the rows' gradients, (n,), such as `Draw.weight`.
        share: Factors of the domains' gradients, (m,), such as a row of `step_shares`.
        ignore_index: The label of tokens without a loss.

    Returns:
        The mean losses in at least float32, 0 for a domain without tokens, (m,); and their numbers of tokens, (m,).

    Examples:
        >>> logits = torch.zeros(2, 3, 5)  # log 5 for every token
        >>> labels = torch.tensor([[1, 2, -100], [0, 4, 3]])
        >>> packed = torch.tensor([[0, 0, 0], [1, 1, 0]])  # the last token is of another document
        >>> losses, counts = eq.token_losses(logits, labels, packed, m=3)
        >>> [f"{loss:.2f}" for loss in losses], counts.tolist()
        (['1.61', '1.61', '0.00'], [3.0, 2.0, 0.0])
    """
    require(labels.ndim == 2, "labels must be one number per token, of shape (n, t)", lambda: tuple(labels.shape))
    rule = f"logits must have shape {tuple(labels.shape)} and one more dimension"
    require(logits.ndim == 3 and logits.shape[:2] == labels.shape, rule, lambda: tuple(logits.shape))
    owners, tokens = _owners(labels, domains, m, ignore_index)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    values = cross_entropy(wide, labels.flatten(), ignore_index=ignore_index, reduction="none").view(labels.shape)
    by_row = domains.ndim == 1
    sums = values.sum(1) if by_row else values
    if weights is not None:
        rule = f"weights must be one number per row, of shape ({len(labels)},)"
        require(weights.shape == (len(labels),), rule, lambda: tuple(weights.shape))
        sums = weigh_gradient(sums, weights if by_row else weights.unsqueeze(1))
    losses, counts = means(sums.flatten(), tokens.to(values), owners, m)
    if share is not None:
        rule = f"share must be one number per domain, of shape ({m},)"
        require(share.shape == (m,), rule, lambda: tuple(share.shape))
        losses = weigh_gradient(losses, share)
    return with_counts(losses, counts)


def count_tokens(labels: Tensor, domains: Tensor, m: int, *, ignore_index: int = IGNORED) -> Tensor:
    """The tokens with a label of every domain, (m,); the arguments are those of `token_losses`.

    Examples:
        >>> labels = torch.tensor([[1, 2, -100], [0, 4, 3]])
        >>> eq.train.count_tokens(labels, torch.tensor([2, 0]), m=3).tolist()
        [3.0, 0.0, 2.0]
    """
    owners, tokens = _owners(labels, domains, m, ignore_index)
    return torch.zeros(m, device=labels.device).index_add(0, owners, tokens.float())


def step_shares(counts: Tensor, group: Group = None) -> Tensor:
    """Factors that turn the mean of per-call means into the mean over all tokens of an accumulated step.

    Call k of K gets K n_k / Σ n for a domain, over all ranks. The gradients of `mol(...) / K` then sum to the gradient
    of Σ ℓ / Σ n.

    Args:
        counts: Tokens of each domain in each call of the step on this rank, (K, m). All ranks must call this function.
        group: The ranks that train together; by default all of them.

    Returns:
        For each call, the `share` of `token_losses`; 0 for a domain that is absent in the step, (K, m).

    Examples:
        >>> counts = torch.tensor([[3.0, 1.0], [1.0, 1.0]])  # of two calls
        >>> eq.train.step_shares(counts).tolist()
        [[1.5, 1.0], [0.5, 1.0]]
    """
    require(counts.ndim == 2, "counts must have one row per call, of shape (K, m)", lambda: tuple(counts.shape))
    total = counts.detach().clone()
    if ranks(group) > 1:
        dist.all_reduce(total, group=group)
    sums = total.sum(0)
    return len(counts) * total / torch.where(sums > 0, sums, 1.0)


def _owners(labels: Tensor, domains: Tensor, m: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The domain of every row and its number of labelled tokens; or the domain of every token, 0 if unlabelled."""
    m = whole("m", m)
    rows, tokens = (len(labels),), tuple(labels.shape)
    rule = f"domains must be one number per row or token, of shape {rows} or {tokens}"
    require(tuple(domains.shape) in {rows, tokens}, rule, lambda: tuple(domains.shape))
    kept = labels != ignore_index
    counted = kept.sum(1, dtype=torch.float32) if domains.ndim == 1 else kept
    owners = (domains if domains.ndim == 1 else torch.where(kept, domains, 0)).long().flatten()
    if owners.device.type == "cpu" and not torch.compiler.is_compiling() and owners.numel() > 0:
        check_range(owners, m, "domains")
    return owners, counted.flatten()
