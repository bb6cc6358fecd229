"""The streams beside a training."""

import torch

from equipoise import streams


def test_a_thread_has_one_stream_for_each_purpose(monkeypatch):
    made: list[torch.device] = []
    monkeypatch.setattr(streams, "_STREAMS", {})

    def make(device: torch.device) -> object:
        made.append(device)
        return object()

    here, there = torch.device("cuda", 0), torch.device("cuda", 1)
    asked = [(here, "numbers"), (here, "copies"), (there, "numbers")]
    first = [streams._stream(*one, make) for one in asked]  # type: ignore[arg-type]
    again = [streams._stream(*one, make) for one in asked]  # type: ignore[arg-type]
    assert made == [here, here, there]
    assert all(one is other for one, other in zip(first, again, strict=True))
