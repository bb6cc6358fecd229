"""Which of the streams of a device is taken. The streams are stand-ins: nothing here needs a device."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from equipoise import streams

DEVICE = torch.device("cpu")
ALONE, USUAL = 0.2, 0.5
"""Milliseconds: of the small kernels, and of the large ones."""


class Held:
    """A stream by how long the large kernels take beside the small ones that it is given."""

    def __init__(self, *times: float) -> None:
        self.times = iter(times)


@pytest.fixture
def offered(monkeypatch) -> list[Held]:
    """What the device gives, one after the other."""
    found: list[Held] = []
    given: Iterator[Held] = iter(found)

    def time(_: object, stream: Any) -> float:
        return USUAL if stream is None else next(stream.times)

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: next(given, Held()))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(streams, "capture_at_once", lambda *_: None)
    monkeypatch.setattr(streams._Trial, "_alone", lambda _: ALONE)
    monkeypatch.setattr(streams._Trial, "_time", time)
    return found


def test_a_stream_that_holds_the_training_up_is_passed_over(offered):
    offered += [Held(0.7, 0.68, 0.71), Held(0.51, 0.7, 0.52), Held(0.5, 0.5, 0.5)]
    assert streams._independent(DEVICE) is offered[1]  # one time in three may be anything


def test_there_may_be_none(offered):
    offered += [Held(0.7, 0.7, 0.7) for _ in range(streams.CANDIDATES)]
    assert streams._independent(DEVICE) is offered[0]


def test_a_thread_has_one_for_each_purpose(offered, monkeypatch):
    monkeypatch.setattr(streams, "_STREAMS", {})
    offered += [Held(0.5, 0.5, 0.5) for _ in range(2 * streams.CANDIDATES)]
    numbers, copies = (streams._stream(DEVICE, purpose, streams._independent) for purpose in ("numbers", "copies"))
    assert numbers is offered[0]
    assert copies is offered[streams.CANDIDATES]
    assert streams._stream(DEVICE, "numbers", streams._independent) is numbers


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stream_is_tried_on_a_device():
    device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.device(device):
        trial = streams._Trial(device)
    assert 0 < trial._lasts < trial._usual
    assert not trial(torch.cuda.current_stream())  # which certainly waits for itself
