"""CIFAR-10's records in both layouts."""

import pickle

import numpy as np
import pytest

from equipoise.datasets.cifar import read_records, records_from_pickle
from equipoise.datasets.files import DataFileError


def planes(first: int) -> bytes:
    """An image whose red, green and blue plane are constant."""
    return bytes([first]) * 1024 + bytes([first + 1]) * 1024 + bytes([first + 2]) * 1024


def test_a_record_is_the_label_and_three_planes():
    content = bytes([6]) + planes(10) + bytes([9]) + bytes(range(256)) * 12
    images, labels = read_records(np.frombuffer(content, np.uint8))
    assert labels.tolist() == [6, 9]
    assert images.shape == (2, 3, 32, 32)
    assert images[0, :, 5, 17].tolist() == [10, 11, 12]
    assert images[1, 0, 1, :3].tolist() == [32, 33, 34]  # the second row of red begins at byte 32


@pytest.mark.parametrize(
    ("content", "message"),
    [(bytes(3072), "whole records of 3073 bytes; found 3072"), (bytes([10]) + bytes(3072), r"0\.\.9; found 10")],
)
def test_what_is_no_batch_is_refused(content: bytes, message: str):
    with pytest.raises(DataFileError, match=message):
        read_records(np.frombuffer(content, np.uint8))


@pytest.mark.parametrize("protocol", range(5))
def test_a_python_batch_becomes_the_same_records(protocol: int):
    data = np.frombuffer(planes(20) + planes(200), np.uint8).reshape(2, 3072)
    raw = pickle.dumps({"data": data, "labels": [3, 1], "filenames": ["a.png", "b.png"]}, protocol)
    assert records_from_pickle(raw) == bytes([3]) + planes(20) + bytes([1]) + planes(200)


def test_a_batch_in_fortran_order_has_its_rows_right():
    data = np.asfortranarray(np.frombuffer(planes(20) + bytes(3072), np.uint8).reshape(2, 3072))
    assert records_from_pickle(pickle.dumps({"data": data, "labels": [3, 1]}, 4))[1:3073] == planes(20)


def test_a_batch_written_by_python_2_is_read():
    raw = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + planes(30) + b"tbU\x06labels]K\x06au."
    )
    assert records_from_pickle(raw) == bytes([6]) + planes(30)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1], "must be a dictionary; found list"),
        ({"labels": [1]}, "array; found NoneType"),
        ({"data": np.zeros((2, 5), np.uint8), "labels": [1, 1]}, r"found \(2, 5\)"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "list of 2 numbers; found 1"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, r"numbers in 0\.\.9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, r"numbers in 0\.\.9"),
    ],
)
def test_other_contents_are_refused(batch: object, message: str):
    with pytest.raises(DataFileError, match=message):
        records_from_pickle(pickle.dumps(batch, 4))
