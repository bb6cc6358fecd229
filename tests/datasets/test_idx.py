"""The file format of MNIST."""

import numpy as np
import pytest

from equipoise.datasets.files import DataFileError
from equipoise.datasets.idx import read_idx


def test_shape_is_big_endian_and_the_values_follow():
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 255])
    np.testing.assert_array_equal(read_idx(np.frombuffer(content, np.uint8)), [[10, 11, 12], [13, 14, 255]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing"),
        (b"\0\0", "found 00 00"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 0]), "must begin with 00 00 08; found 00 00 0d 01"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 2]), "header must have 12 bytes; found 8"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1]), r"shape \(2,\) must have 2 bytes; found 1"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 1, 1]), "must have 2 bytes; found 3"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "must have 79228162458924105385300197375 bytes; found 0"),
    ],
)
def test_what_is_no_idx_file_of_bytes_is_refused(content: bytes, message: str):
    with pytest.raises(DataFileError, match=message):
        read_idx(np.frombuffer(content, np.uint8))
