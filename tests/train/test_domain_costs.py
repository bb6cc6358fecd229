"""What drawn batches and losses by domain cost a step: operations of torch, waits for the device, shared memory."""

import copy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, TensorDataset

import equipoise as eq

M, N, T, WORDS = 3, 8, 5, 7
DEVICE = torch.device("meta")
"""An accelerator without data: what waits for a value raises an error."""


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched under it; those that only make a view do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.namespace == "aten" and "promote_types" not in str(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def count(losses: Any, leaf: Tensor) -> int:
    """Operations of one call with its backward pass."""
    with Operations() as seen:
        losses().mean().backward()
    assert leaf.grad is not None
    leaf.grad = None
    return len(seen.found)


def text() -> tuple[Tensor, Tensor]:
    logits = torch.empty(N, T, WORDS, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    return logits, torch.empty(N, T, device=DEVICE, dtype=torch.int64)


def test_a_wait_for_this_device_is_an_error():
    with pytest.raises(RuntimeError, match="meta"):
        torch.empty((), device=DEVICE).item()
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        torch.empty(3, device=DEVICE).nonzero()


@pytest.mark.parametrize(("packed", "share", "most"), [(False, False, 14), (True, False, 13), (False, True, 15)])
def test_token_losses_add_few_operations_and_no_wait(packed, share, most):
    logits, labels = text()
    domains = torch.empty((N, T) if packed else (N,), device=DEVICE, dtype=torch.int64)
    weights = torch.empty(N, device=DEVICE, dtype=torch.float64)
    shares = torch.empty(M, device=DEVICE) if share else None
    plain = count(lambda: cross_entropy(logits.float().flatten(0, 1), labels.flatten()), logits)
    ours = count(lambda: eq.token_losses(logits, labels, domains, M, weights=weights, share=shares)[0], logits)
    assert ours - plain <= most


@pytest.mark.parametrize(("overlap", "most"), [(False, 10), (True, 17)])
def test_group_losses_add_few_operations_and_no_wait(overlap, most):
    values = torch.empty(N, device=DEVICE, requires_grad=True)
    shape, dtype = ((N, M), torch.float32) if overlap else ((N,), torch.int64)
    groups, weights = torch.empty(shape, device=DEVICE, dtype=dtype), torch.empty(N, device=DEVICE, dtype=torch.float64)
    plain = count(lambda: values, values)
    ours = count(lambda: eq.group_losses(values, groups, M, weights=weights)[0], values)
    assert ours - plain <= most


def test_drawing_and_following_use_no_operation_of_torch():
    sampler = eq.DomainSampler([0, 0, 1, 2, 2, 2], 6, steps=9)
    batches, coefficients = iter(sampler), torch.ones(M)
    for _ in range(9):
        with Operations() as seen:
            next(batches)
            sampler.follow(coefficients)
        assert seen.found == []


def draw_of_a_batch() -> Any:
    sampler = eq.DomainSampler([0, 0, 1, 2, 2, 2], 6)
    data: Dataset[Any] = sampler.with_draws(TensorDataset(torch.arange(6)))
    return next(iter(DataLoader(data, batch_sampler=sampler)))[1]


def test_a_draw_comes_from_a_worker_without_shared_memory():
    draw = draw_of_a_batch()
    sent = ForkingPickler.loads(ForkingPickler.dumps(draw))
    assert type(sent) is type(draw)
    for before, after in zip(draw, sent, strict=True):
        assert torch.equal(before, after)
        assert before.dtype == after.dtype
        assert not before.is_shared()  # passing a tensor moves it there
        after.add_(1)  # writable


@pytest.mark.parametrize("change", [lambda x: x.bfloat16(), lambda x: x.double().requires_grad_(), lambda x: x.half()])
def test_other_tensors_in_a_draw_are_passed_as_torch_passes_them(change):
    draw = draw_of_a_batch()._replace(weight=change(torch.ones(6)))
    sent = ForkingPickler.loads(ForkingPickler.dumps(draw))
    assert torch.equal(sent.weight, draw.weight)
    assert sent.weight.requires_grad == draw.weight.requires_grad
    assert draw.weight.is_shared()


def test_fields_that_are_no_tensors_come_from_a_worker_as_they_are():
    draw = draw_of_a_batch()._replace(domain=np.array(["en", "de"]), weight=np.ones(2))
    sent = ForkingPickler.loads(ForkingPickler.dumps(draw))
    assert sent.domain.tolist() == ["en", "de"]
    assert type(sent.weight) is np.ndarray


def test_a_draw_is_copied_as_any_other_tuple():
    draw = draw_of_a_batch()
    assert copy.copy(draw).weight is draw.weight


class AtOnce(Dataset[int]):
    """Reads whole batches, and no single sample."""

    def __getitem__(self, index: int) -> int:
        raise AssertionError(index)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * k for k in indices]


def test_a_data_set_that_reads_whole_batches_is_asked_for_them():
    sampler = eq.DomainSampler([0, 0, 1, 2, 2, 2], 6)
    for (numbers, draw), batch in zip(
        DataLoader(sampler.with_draws(AtOnce()), batch_sampler=sampler),
        eq.DomainSampler([0, 0, 1, 2, 2, 2], 6),
        strict=True,
    ):
        assert numbers.tolist() == [10 * k for k, _ in batch]
        assert draw.domain.tolist() == [one.domain for _, one in batch]


@pytest.mark.parametrize("found", [{"a": [1] * 6, "b": [2] * 6}, dict.fromkeys("abcdef"), [1, 2, 3], "abcdef"])
def test_columns_instead_of_samples_are_an_error(found, monkeypatch):
    data = AtOnce()
    monkeypatch.setattr(data, "__getitems__", lambda _: found)
    sampler = eq.DomainSampler([0, 0, 1, 2, 2, 2], 6)
    with pytest.raises(ValueError, match=r"must return a list with one sample per index; found .* for 6 indices"):
        next(iter(DataLoader(sampler.with_draws(data), batch_sampler=sampler)))
