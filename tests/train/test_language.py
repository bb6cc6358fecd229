"""Losses per token by domain: ignored labels, packed rows, gradient accumulation, bad input."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import equipoise as eq

M = 3


def naive(logits: Tensor, labels: Tensor, domains: Tensor) -> tuple[list[float], list[int]]:
    """Token by token."""
    sums, counts = [0.0] * M, [0] * M
    for row in range(len(labels)):
        for place, label in enumerate(labels[row].tolist()):
            if label != -100:
                domain = int(domains[row] if domains.ndim == 1 else domains[row, place])
                sums[domain] += float(cross_entropy(logits[row, place], torch.tensor(label)))
                counts[domain] += 1
    return [s / max(n, 1) for s, n in zip(sums, counts, strict=True)], counts


def draw(seed: int, rows: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (rows, 6), generator=generator)
    labels[torch.rand(rows, 6, generator=generator) < 0.3] = -100
    return logits, labels, torch.randint(M, (rows, 6), generator=generator)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("packed", [True, False])
def test_the_mean_over_the_tokens_of_each_domain(seed, packed):
    logits, labels, domains = draw(seed)
    domains = domains if packed else domains[:, 0]
    expected, counts = naive(logits, labels, domains)
    losses, n = eq.token_losses(logits, labels, domains, M)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    assert n.tolist() == counts == eq.train.count_tokens(labels, domains, M).tolist()


def test_the_domain_of_an_ignored_token_is_not_looked_at():
    logits, labels, domains = draw(0)
    domains = torch.where(labels == -100, -1, domains)
    assert eq.token_losses(logits, labels, domains, M)[1].sum() == (labels != -100).sum()


def test_half_precision_is_summed_in_float32():
    logits, labels, domains = draw(0)
    losses, counts = eq.token_losses(logits.bfloat16(), labels, domains, M)
    assert losses.dtype == counts.dtype == torch.float32


def test_weights_multiply_gradients_and_leave_losses():
    logits, labels, domains = draw(1)
    rows = domains[:, 0]
    weights = torch.tensor([0.5, 2.0, 1.0, 3.0])
    plain, weighted = (logits.clone().requires_grad_() for _ in range(2))
    one, _ = eq.token_losses(plain, labels, rows, M)
    other, _ = eq.token_losses(weighted, labels, rows, M, weights=weights)
    assert torch.equal(one, other)
    one.sum().backward()
    other.sum().backward()
    assert plain.grad is not None
    assert weighted.grad is not None
    torch.testing.assert_close(weighted.grad, plain.grad * weights[:, None, None])


def test_accumulated_calls_have_the_gradient_of_one_large_batch():
    """Three micro-batches with very different numbers of tokens: means over all tokens, not means of means."""
    torch.manual_seed(0)
    parts = [draw(seed, rows) for seed, rows in ((0, 1), (1, 5), (2, 2))]
    features = nn.Linear(5, 5, bias=False).double()

    def run(calls: list[tuple[Tensor, Tensor, Tensor]], *, shared: bool) -> tuple[Tensor, Tensor]:
        features.zero_grad()
        optimizer = torch.optim.SGD(features.parameters(), lr=0.0)
        w = torch.full((M,), 1 / M, dtype=torch.float64)
        mol = eq.MultiObjective(features, optimizer, w, method=(eq.OMD(0.5), eq.Last()))
        counts = torch.stack([eq.train.count_tokens(labels, domains, M) for _, labels, domains in calls])
        shares = eq.train.step_shares(counts)
        for share, (logits, labels, domains) in zip(shares, calls, strict=True):
            f, n = eq.token_losses(features(logits), labels, domains, M, share=share if shared else None)
            (mol(f, n) / len(calls)).backward()
        found = features.weight.grad
        assert found is not None
        gradient = found.clone()
        optimizer.step()
        mol.close()
        assert mol.duals is not None
        return gradient, mol.duals

    whole = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    expected, duals = run([whole], shared=False)  # type: ignore[list-item]
    gradient, same = run(parts, shared=True)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(same, duals)  # λ sees the mean over all tokens in either case
    means_of_means, _ = run(parts, shared=False)
    assert (means_of_means - expected).abs().max() > 1e-3


def test_a_token_loss_that_is_not_finite_is_named_with_its_domain():
    model = nn.Linear(5, 5)
    mol = eq.MultiObjective(model, None, {"de": 0.3, "fr": 0.3, "ja": 0.4})
    logits, labels, domains = draw(0)
    spoiled = logits.float().clone()
    row, place = torch.nonzero((domains == 1) & (labels != -100))[0].tolist()
    spoiled[row, place] = torch.nan
    with pytest.raises(eq.NonFiniteLossError, match="losses must be finite; found nan for fr in step 1"):
        mol(*eq.token_losses(model(spoiled), labels, domains, M))


def test_it_compiles_whole():
    torch._dynamo.reset()
    logits, labels, domains = draw(0)
    compiled = torch.compile(eq.token_losses, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(logits, labels, domains, M), eq.token_losses(logits, labels, domains, M), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": torch.zeros(4, dtype=torch.int64)},
            r"labels must be one number per token, of shape \(n, t\); found",
        ),
        ({"logits": torch.zeros(4, 5)}, r"logits must have shape \(4, 6\) and one more dimension; found \(4, 5\)"),
        (
            {"domains": torch.zeros(3, dtype=torch.int64)},
            r"domains must be one number per row or token, of shape \(4,\) or",
        ),
        ({"domains": torch.full((4,), 3)}, r"domains must lie in 0\.\.2; found 3"),
        ({"domains": torch.full((4, 6), -1)}, r"domains must lie in 0\.\.2; found -1"),
        ({"m": 0}, "m must be a whole number of at least 1; found 0"),
        ({"weights": torch.ones(3)}, r"weights must be one number per row, of shape \(4,\); found \(3,\)"),
        ({"share": torch.ones(4)}, r"share must be one number per domain, of shape \(3,\); found \(4,\)"),
    ],
)
def test_a_bad_batch_is_named(change, message):
    logits, labels, domains = draw(0)
    with pytest.raises(ValueError, match=message):
        eq.token_losses(**{"logits": logits, "labels": labels, "domains": domains, "m": M, **change})


def test_bad_counts_are_named():
    with pytest.raises(ValueError, match=r"counts must have one row per call, of shape \(K, m\); found \(3,\)"):
        eq.train.step_shares(torch.ones(3))
