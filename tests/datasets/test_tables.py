"""Adult, Credit and COMPAS as numbers."""

import pytest
import torch

from equipoise.datasets import Dataset, standardize
from equipoise.datasets.compas import read_compas
from equipoise.datasets.dataset import divide
from equipoise.datasets.files import DataFileError
from equipoise.datasets.tables import Columns, read_table

COLUMNS = Columns(
    numeric=("age",),
    categorical=("work", "sex"),
    target="rich",
    classes=("no", "yes"),
    group="sex",
    groups=("f", "m"),
    ignored=("id",),
)
CSV = b'id,work,age,sex,rich\n1,shop,30,m,no\n2,"of,fice",40,f,yes\n3,?,50,m,no'


def test_numbers_first_then_indicators_in_sorted_order():
    table = read_table(CSV, COLUMNS)
    assert table.columns == ("age", "work=?", "work=of,fice", "work=shop", "sex=f", "sex=m")
    assert table.inputs.dtype == torch.float32
    assert table.inputs.tolist() == [[30, 0, 0, 1, 0, 1], [40, 0, 1, 0, 1, 0], [50, 1, 0, 0, 0, 1]]
    assert table.labels.tolist() == [0, 1, 0]
    assert table.groups.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "CSV with a header"),
        (b"\xff\xfe", "CSV with a header"),
        (b"id,work,age,sex\n", "columns must be age, id, rich, sex, work; found id, work, age, sex"),
        (b"id,work,age,sex,rich\n1,shop,30,m\n", "row 2 must have 5 values; found 4"),
        (b"id,work,age,sex,rich\n1,shop,old,m,no\n", "column age must hold numbers.*'old'"),
        (b"id,work,age,sex,rich\n1,shop,1,m,maybe\n", "column rich must hold no, yes; found 'maybe'"),
    ],
)
def test_another_table_is_refused(content: bytes, message: str):
    with pytest.raises(DataFileError, match=message):
        read_table(content, COLUMNS)


def test_standardize_uses_the_training_rows_and_leaves_indicators():
    train, test = torch.tensor([[1.0, 0.0, 5.0], [3.0, 1.0, 5.0]]), torch.tensor([[5.0, 1.0, 7.0]])
    labels = torch.zeros(2, dtype=torch.int64)
    table = Dataset("toy", train, labels, test, labels[:1], ("a",), columns=("x", "k=1", "constant"))
    scaled = standardize(table)
    assert scaled.train_inputs.tolist() == [[-1, 0, 0], [1, 1, 0]]
    assert scaled.test_inputs.tolist() == [[3, 1, 2]]
    assert train.tolist() == [[1, 0, 5], [3, 1, 5]]
    with pytest.raises(ValueError, match="dataset must be a table with named columns; found images"):
        standardize(Dataset("images", train, labels, test, labels[:1], ("a",)))


@pytest.mark.parametrize("name", ["train_inputs", "train_labels", "test_inputs", "test_labels"])
def test_arrays_are_no_tensors(name: str):
    rows, labels = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)
    parts = {"train_inputs": rows, "train_labels": labels, "test_inputs": rows, "test_labels": labels}
    rule = f"{name} must be a tensor: torch.from_numpy makes one of an array; found a ndarray"
    with pytest.raises(ValueError, match=rule):
        Dataset("toy", **{**parts, name: parts[name].numpy()}, class_names=("a",))  # type: ignore[arg-type]


def test_divide_is_a_partition_that_the_seed_fixes():
    train, test = divide(10, 3)
    assert sorted(train.tolist() + test.tolist()) == list(range(10))
    assert test.tolist() == [3, 5, 7]  # the three smallest draws of random.Random(0)
    assert divide(10, 3, seed=1)[1].tolist() != test.tolist()
    with pytest.raises(ValueError, match=r"test must lie in 0\.\.10; found 11"):
        divide(10, 11)


PEOPLE = (
    "age,sex,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,c_charge_degree,"
    "days_b_screening_arrest,is_recid,score_text,two_year_recid,priors_count"
)


def test_compas_keeps_the_people_of_the_published_analysis():
    rows = [
        "30,Male,African-American,0,1,2,3,F,-30,1,Low,1,3",
        "40,Female,Asian,0,0,0,0,M,1,0,High,0,0",
        "50,Male,Caucasian,0,0,0,0,M,31,0,High,0,0",  # screened late
        "51,Male,Caucasian,0,0,0,0,M,,0,High,0,0",  # nobody knows when
        "52,Male,Caucasian,0,0,0,0,M,0,-1,High,0,0",  # outcome not known
        "53,Male,Caucasian,0,0,0,0,O,0,0,High,0,0",  # a traffic offence
        "54,Male,Caucasian,0,0,0,0,M,0,0,N/A,0,0",  # no score
    ]
    table = read_compas("\n".join([PEOPLE, *rows]).encode())
    assert table.columns[-4:] == ("sex=Female", "sex=Male", "c_charge_degree=F", "c_charge_degree=M")
    assert table.inputs.tolist() == [[30, 0, 1, 2, 3, 0, 1, 1, 0], [40, 0, 0, 0, 0, 1, 0, 0, 1]]
    assert table.labels.tolist() == [1, 0]
    assert table.groups.tolist() == [0, 2]


@pytest.mark.parametrize(
    "content", [b"\xff", b"age,sex\n1,Male\n", PEOPLE.encode() + b"\n30,Male,x,0,0,0,0,F,soon,1,Low,1,0\n"]
)
def test_a_table_that_is_not_compas_is_refused(content):
    with pytest.raises(DataFileError, match=r"COMPAS must be CSV with the columns age, c_charge_degree, .*: "):
        read_compas(content)
