"""CSV tables: numeric columns unchanged, categorical columns one-hot encoded."""

import csv
import io
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.datasets.dataset import Dataset
from equipoise.datasets.files import DataFileError
from equipoise.errors import require

__all__ = ["ADULT", "CREDIT", "Columns", "Table", "encode", "read_table"]


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are.

    Attributes:
        numeric: Columns of numbers, in the order in which they become inputs.
        categorical: Columns of categories; they follow, one-hot encoded with sorted values.
        target: The column to predict.
        classes: The target's values, in label order.
        group: The column that divides people into groups (it is among the inputs too).
        groups: The group column's values, in group order.
        ignored: Columns that are not used.
    """

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    target: str
    classes: tuple[str, ...]
    group: str
    groups: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    @property
    def all(self) -> set[str]:
        """Every column that the file must have."""
        return {*self.numeric, *self.categorical, self.target, self.group, *self.ignored}


@dataclass(frozen=True, eq=False)
class Table:
    """A whole table, before it is split.

    Attributes:
        inputs: (n, len(columns)) float32.
        labels: (n,) int64.
        groups: (n,) int64.
        columns: The name of each input.
    """

    inputs: Tensor
    labels: Tensor
    groups: Tensor
    columns: tuple[str, ...]

    def split(
        self, train: Tensor, test: Tensor, *, name: str, class_names: tuple[str, ...], group_names: tuple[str, ...]
    ) -> Dataset:
        """The data set whose training and test rows have these indices."""
        return Dataset(
            name,
            self.inputs[train],
            self.labels[train],
            self.inputs[test],
            self.labels[test],
            class_names,
            columns=self.columns,
            train_groups=self.groups[train],
            test_groups=self.groups[test],
            group_names=group_names,
        )


ADULT = Columns(
    numeric=("age", "fnlwgt", "educational-num", "capital-gain", "capital-loss", "hours-per-week"),
    categorical=(
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "gender",
        "native-country",
    ),
    target="income",
    classes=("<=50K", ">50K"),
    group="gender",
    groups=("Female", "Male"),
)

CREDIT = Columns(
    numeric=(
        "LIMIT_BAL",
        "AGE",
        *(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)),
        *(f"BILL_AMT{month}" for month in range(1, 7)),
        *(f"PAY_AMT{month}" for month in range(1, 7)),
    ),
    categorical=("SEX", "EDUCATION", "MARRIAGE"),
    target="default.payment.next.month",
    classes=("0", "1"),
    group="SEX",
    groups=("1", "2"),
    ignored=("ID",),
)


def read_table(content: bytes, columns: Columns) -> Table:
    """The encoded table of a CSV file with a header.

    Args:
        content: The file, in UTF-8.
        columns: What its columns are; a missing value of a categorical column (`?`) is a category of its own.
    """
    try:
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
    except (ValueError, csv.Error) as error:
        raise DataFileError(f"a table must be CSV with a header: {error}") from error
    if set(header) != columns.all or len(header) != len(columns.all):
        raise DataFileError(f"the columns must be {', '.join(sorted(columns.all))}; found {', '.join(header)}")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataFileError(f"row {line} must have {len(header)} values; found {len(row)}")
    values: dict[str, tuple[str, ...]] = dict.fromkeys(header, ())
    if rows:
        values = dict(zip(header, zip(*rows, strict=True), strict=True))
    return encode(values, columns)


def encode(values: dict[str, tuple[str, ...]], columns: Columns) -> Table:
    """Encode columns of texts as numbers.

    Args:
        values: The values of every column that is used, by its name.
        columns: What the columns are.
    """
    names: list[str] = list(columns.numeric)
    inputs = [_numbers(name, values[name]) for name in columns.numeric]
    for name in columns.categorical:
        kinds = sorted(set(values[name]))
        numbers = _indices(name, values[name], tuple(kinds))
        inputs += [(numbers == kind).to(torch.float32) for kind in range(len(kinds))]
        names += [f"{name}={kind}" for kind in kinds]
    require(bool(inputs), "columns must name at least one input", 0)
    labels = _indices(columns.target, values[columns.target], columns.classes)
    groups = _indices(columns.group, values[columns.group], columns.groups)
    return Table(torch.stack(inputs, dim=1), labels, groups, tuple(names))


def _numbers(name: str, texts: tuple[str, ...]) -> Tensor:
    try:
        return torch.tensor([float(text) for text in texts], dtype=torch.float32)
    except ValueError as error:
        raise DataFileError(f"column {name} must hold numbers: {error}") from error


def _indices(name: str, texts: tuple[str, ...], known: tuple[str, ...]) -> Tensor:
    index = {text: number for number, text in enumerate(known)}
    try:
        return torch.tensor([index[text] for text in texts], dtype=torch.int64)
    except KeyError as error:
        raise DataFileError(f"column {name} must hold {', '.join(known)}; found {error}") from error
