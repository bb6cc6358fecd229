"""Pickles of byte arrays and plain containers, read without executing anything that they name.

A pickle is a program that may call anything it can name. Here it can name only the four globals that a pickled
numpy array needs, and these are stand-ins: numpy's own constructors never see untrusted arguments. Each stand-in
refuses every use but the intended one.
"""

import io
import pickle
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from equipoise.datasets.files import DataFileError

__all__ = ["unpickle_arrays"]


class _Array:
    """Stands in for numpy.ndarray and for the function that creates an empty one; its state fills it."""

    __slots__ = ("values",)
    values: NDArray[np.uint8]

    def __new__(cls, *_arguments: object) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("only arrays of unsigned bytes are admitted")
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise pickle.UnpicklingError("the shape of an array must be a tuple of sizes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands in for numpy.dtype("u1"), the only dtype that is allowed."""

    __slots__ = ()

    def __new__(cls, code: object, *_flags: object) -> Self:
        if code not in {"u1", b"u1"}:
            raise pickle.UnpicklingError(f"only arrays of unsigned bytes (u1) are admitted; found {code!r}")
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and fields: a type of one byte has none."""


class _Latin1(bytes):
    """Stands in for codecs.encode, which older protocols use to write bytes as text."""

    __slots__ = ()

    def __new__(cls, text: str, encoding: str) -> Self:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes must be written in latin1; found {encoding!r}")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("bytes have no state")


# All are classes with a __setstate__, so that a pickle can neither set their attributes nor reach a function's.
ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> type:
        try:
            return ADMITTED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is not admitted") from None


def unpickle_arrays(raw: bytes) -> object:
    """Read a pickle of byte arrays, dictionaries, lists, tuples, texts and numbers.

    Protocols 0 to 4, written by Python 2 (its texts come back as bytes) or 3.

    Args:
        raw: The pickle.

    Raises:
        DataFileError: It names or holds anything else; nothing was executed.
    """
    try:
        found = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        return _plain(found)
    except Exception as error:  # a hostile stream can fail in any way
        raise DataFileError(f"the pickle must hold byte arrays and plain containers only: {error}") from error


def _plain(value: Any) -> object:  # noqa: ANN401
    """The value with stand-ins replaced by arrays, also inside a dictionary or list."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, dict):
        return {key: item.values if isinstance(item, _Array) else item for key, item in value.items()}
    if isinstance(value, list):
        return [item.values if isinstance(item, _Array) else item for item in value]
    return value
