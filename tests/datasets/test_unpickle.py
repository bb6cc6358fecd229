"""The reader of CIFAR-10's Python batches executes nothing."""

import os
import pickle
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from equipoise.datasets import unpickle
from equipoise.datasets.files import DataFileError
from equipoise.datasets.unpickle import unpickle_arrays


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"data": x, "labels": [0]}, lambda x: [np.zeros(2, "u1"), x]])
@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.getoutput])
def test_a_hostile_pickle_is_refused_and_not_executed(tmp_path: Path, protocol: int, wrap, function):
    mark = tmp_path / "executed"
    shell = function in {os.system, subprocess.getoutput}
    text = f"echo > '{mark}'" if shell else f"open({str(mark)!r}, 'w').close()"
    raw = pickle.dumps(wrap(Call(function, text)), protocol)
    with pytest.raises(DataFileError, match="is not admitted"):
        unpickle_arrays(raw)
    assert not mark.exists()
    pickle.loads(raw)  # noqa: S301  the same bytes do harm to a reader that trusts them
    assert mark.exists()


@pytest.mark.parametrize("value", [np.uint8(3), np.zeros(2), np.array([None]), OrderedDict(a=1), Path("a"), {1, 2}.add])
def test_what_is_neither_byte_array_nor_plain_is_refused(value: object):
    with pytest.raises(DataFileError, match="byte arrays and plain containers only"):
        unpickle_arrays(pickle.dumps(value, 2))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x02",
        b"cnumpy\nload\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",  # an attribute of something admitted
        b"cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb.",  # sets an attribute of a stand-in's class
        b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.",  # another codec
        b"cnumpy\nndarray\n)R.",  # an array without values
        b"cnumpy\nndarray\n)R(K\x01K\x01\x85NK\x00C\x01atb.",  # without a type
        b"Pabc\n.",  # a persistent id
    ],
)
def test_malformed_and_devious_streams_are_refused(raw: bytes):
    with pytest.raises(DataFileError, match="the pickle must hold"):
        unpickle_arrays(raw)
    assert all("a" not in vars(stand_in) for stand_in in unpickle.ADMITTED.values())


@pytest.mark.parametrize("protocol", range(5))
def test_arrays_and_plain_values_come_back(protocol: int):
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "a", "pair": (1.5, None)}
    found = unpickle_arrays(pickle.dumps(value, protocol))
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found.pop("data"), [[0, 1, 2], [3, 4, 5]])
    assert found == {"labels": [1, 2], "name": "a", "pair": (1.5, None)}
