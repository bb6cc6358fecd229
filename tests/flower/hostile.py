"""Replies of hostile clients, made from good ones by a seeded generator."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord

__all__ = ["Hostile", "hostile_replies"]

Draws = random.Random


class Hostile(NamedTuple):
    """One way to answer."""

    name: str
    refused: bool | None
    """Whether it must be refused; None if it may be or not."""
    spoil: Callable[[Message, Message], Message]
    """The hostile reply, of the message received and the good reply, which it may change."""


def hostile_replies(seed: int, count: int) -> Iterator[Hostile]:
    """So many of them, every kind in turn, with numbers drawn from the seed."""
    draws = random.Random(seed)  # noqa: S311
    for k in range(count):
        kind = KINDS[k % len(KINDS)]
        yield kind(random.Random(draws.random()))  # noqa: S311


def _metrics(reply: Message) -> MetricRecord:
    return next(iter(reply.content.metric_records.values()))


def _arrays(reply: Message) -> ArrayRecord:
    return next(iter(reply.content.array_records.values()))


def _of_metric(name: str, values: list[Any], *, refused: bool | None = True) -> Callable[[Draws], Hostile]:
    def make(draws: Draws) -> Hostile:
        value = draws.choice(values)

        def spoil(_: Message, reply: Message) -> Message:
            _metrics(reply)[name] = value
            return reply

        return Hostile(f"{name} = {value!r:.40}", refused, spoil)

    return make


def _of_reply(name: str, change: Callable[[Message], object], *, refused: bool | None = True) -> Any:
    def make(_: Draws) -> Hostile:
        def spoil(_: Message, reply: Message) -> Message:
            change(reply)
            return reply

        return Hostile(name, refused, spoil)

    return make


def _of_array(
    name: str, change: Callable[[np.ndarray[Any, Any], Draws], Any], *, refused: bool | None = True
) -> Callable[[Draws], Hostile]:
    """One array, drawn, is replaced by another array or by an Array."""

    def make(draws: Draws) -> Hostile:
        def spoil(_: Message, reply: Message) -> Message:
            arrays = _arrays(reply)
            which = draws.choice(sorted(arrays))
            found = change(arrays[which].numpy().copy(), draws)
            arrays[which] = found if isinstance(found, Array) else Array(found)
            return reply

        return Hostile(name, refused, spoil)

    return make


def _of_header(name: str, header: Callable[[Draws], bytes]) -> Callable[[Draws], Hostile]:
    """The numbers behind another header."""

    def change(x: np.ndarray[Any, Any], draws: Draws) -> Array:
        text = header(draws)
        return _raw(b"\x93NUMPY\1\0" + min(len(text), 65535).to_bytes(2, "little") + text + x.tobytes())

    return _of_array(name, change)


def _raw(data: bytes) -> Array:
    return Array("float64", (1,), "numpy.ndarray", data)


def _dictionary(descr: str = "'<f8'", fortran: str = "False", shape: str = "(3, 4)") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()


def _of_entry(values: list[float], *, refused: bool | None = True) -> Callable[[Draws], Hostile]:
    def change(x: np.ndarray[Any, Any], draws: Draws) -> np.ndarray[Any, Any]:
        x.flat[draws.randrange(x.size)] = draws.choice(values)
        return x

    return _of_array(f"an entry of {values}", change, refused=refused)


def _truncated(x: np.ndarray[Any, Any], draws: Draws) -> Array:
    data = Array(x).data
    return _raw(data[: draws.randrange(len(data))])


def _flipped(x: np.ndarray[Any, Any], draws: Draws) -> Array:
    data = bytearray(Array(x).data)
    for _ in range(draws.randint(1, 3)):
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    return _raw(bytes(data))


def _failed(draws: Draws) -> Hostile:
    text = draws.choice(["\x1b[2J\nround 1: all is well", "x" * 100_000, ""])
    return Hostile("an error", True, lambda message, _: Message(Error(0, text), reply_to=message))


def _without(name: str) -> Callable[[Message], object]:
    return lambda reply: _metrics(reply).pop(name)


def _rename(reply: Message) -> None:
    arrays = _arrays(reply)
    name = next(iter(arrays))
    arrays[name + "\n"] = arrays.pop(name)


def _far(message: Message, reply: Message) -> Message:
    for name, sent in _arrays(message).items():
        _arrays(reply)[name] = Array(sent.numpy() + 1e15)
    return reply


KINDS: list[Callable[[Draws], Hostile]] = [
    # numbers
    _of_metric("loss", [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 1.7e308, 3.5e38, [], [1.0, 2.0]]),
    _of_metric("loss", [3e38, -3e38, 1e30, 0.0, -1e6, 5e-324], refused=False),
    _of_metric("num-examples", [0, -1, -(2**62), 2**53 + 2, 2**62, 1e308, float("nan"), float("inf"), float("-inf")]),
    _of_metric("num-examples", [2**53, 1e-300, 0.5], refused=False),
    _of_metric("accuracy", [-0.1, 1.1, 1e308, float("nan"), float("-inf"), [0.5]]),
    _of_metric("partition-id", [-1, 99, 2**62, -(2**62), 0.5, 1e300, float("nan"), float("inf"), [3], []]),
    _of_metric("partition-id", [0, 1, 2]),
    # records
    *(_of_reply(f"no {key}", _without(key)) for key in ("loss", "num-examples", "partition-id")),
    _of_reply("no metrics", lambda r: r.content.pop(next(iter(r.content.metric_records)))),
    _of_reply("two records of metrics", lambda r: r.content.update(more=MetricRecord({"loss": 0.0}))),
    _of_reply("no arrays", lambda r: r.content.pop(next(iter(r.content.array_records)))),
    _of_reply("two records of arrays", lambda r: r.content.update(more=ArrayRecord())),
    _of_reply("an array less", lambda r: _arrays(r).pop(next(iter(_arrays(r))))),
    _of_reply("an array more", lambda r: _arrays(r).update(more=Array(np.zeros(1)))),
    _of_reply("a long name", lambda r: _arrays(r).update({"\x1b[31m" * 20_000: Array(np.zeros(1))})),
    _of_reply("another name", _rename),
    _of_reply("a configuration", lambda r: r.content.update(more=ConfigRecord({"seed": 9})), refused=False),
    _of_reply("many metrics", lambda r: _metrics(r).update({f"m{k}": k for k in range(2000)}), refused=False),
    _failed,
    # bytes
    _of_array("no bytes", lambda _, __: _raw(b"")),
    _of_array("noise", lambda _, draws: _raw(draws.randbytes(draws.randrange(1, 400)))),
    _of_array("truncated", _truncated),
    _of_array("bits flipped", _flipped, refused=None),
    _of_array("bytes more", lambda x, draws: _raw(Array(x).data + draws.randbytes(8))),
    _of_array("version", lambda x, draws: _raw(b"\x93NUMPY" + bytes([draws.randint(4, 255), 0]) + Array(x).data[8:])),
    _of_array("length of 4 GB", lambda x, _: _raw(b"\x93NUMPY\2\0\xff\xff\xff\xff" + Array(x).data[10:])),
    _of_header(
        "no dictionary", lambda draws: draws.choice([b"[", b"{", b"'", b'"""', b"\\", b"\0", b"1e999", b"()\n"])
    ),
    _of_header("deep", lambda draws: draws.choice([b"(", b"[", b"-", b"{1:", b"~", b"not "]) * draws.randint(90, 1000)),
    _of_header("long", lambda draws: _dictionary(shape="(" + "1, " * draws.randint(1000, 9000) + ")")),
    _of_header(
        "enormous",
        lambda draws: _dictionary(
            shape=draws.choice(
                ["(9999999999,)", "(10" + "0" * 400 + ",)", "(2, 4611686018427387904)", "(0, 99999999999)"]
            )
        ),
    ),
    _of_header(
        "odd shape",
        lambda draws: _dictionary(
            shape=draws.choice(["(-3, -4)", "(3.0, 4)", "(True, 12)", "3", "None", "[3, 4]", "('3',)"])
        ),
    ),
    _of_header(
        "odd numbers",
        lambda draws: _dictionary(
            draws.choice(
                ["'|O'", "'<U9'", "'<M8[s]'", "'<f16'", "'|V8'", "[('a', '<f8')]", "'<f8,<f8'", "8", "'f'", "''"]
            )
        ),
    ),
    _of_header(
        "odd order", lambda draws: _dictionary(fortran=draws.choice(["1", "None", "'False'", "__import__('os')"]))
    ),
    _of_header("keys", lambda draws: draws.choice([b"{}\n", b"{'descr': '<f8'}\n", _dictionary()[:-2] + b"'x': 1}\n"])),
    # arrays
    _of_array("transposed", lambda x, _: np.zeros((*x.shape[::-1], 1))),
    _of_array("flat", lambda x, _: np.zeros(x.size + 1)),
    _of_array("a number", lambda _, __: np.zeros(())),
    _of_array("empty", lambda _, __: np.zeros(0)),
    _of_array("other numbers", lambda x, draws: x.astype(draws.choice(["i8", "u1", "?", "c16", "S8", "M8[s]"]))),
    _of_entry([float("nan"), float("inf"), float("-inf")]),
    _of_entry([1e300, -1e300, 1.7e308]),
    _of_entry([1e100, -1e30, 1e15], refused=False),
    _of_array("fortran", lambda x, _: np.asfortranarray(x), refused=False),
    _of_array("big-endian", lambda x, _: x.astype(">f8"), refused=False),
    lambda _: Hostile("far away", False, _far),
]
"""For models of float64."""
