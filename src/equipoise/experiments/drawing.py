"""The look of all figures: one colour per method, one style, PNG and PDF."""

import zlib
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["BLACK", "BLUE", "COLOURS", "RED", "colour", "save", "style"]

# Okabe and Ito's colours, which are safe for colour-blind readers, and shades of them.
BLUE, RED, BLACK = "#0072B2", "#D55E00", "#000000"
COLOURS: dict[str, str] = {
    "LS": BLACK, "TCH": RED, "STCH": "#E69F00", "OMDgd-TCH": "#56B4E9", "AdaOMDgd-TCH": BLUE, "OMDeg-TCH": "#8FA6D9",
    "AdaOMDeg-TCH": "#2B3F8C", "ExcessMTL": "#8C6D1F", "AdaExcessMTL": "#5C4508", "qFFL": "#999999",
    "PropFair": "#5F5F5F", "FedMGDA+": "#009E73", "FedFV": "#66C2A4", "MGDA": "#1B7837", "CR-MOGM": "#00614A",
    "Moco": "#A6DBA0", "STCH w/ momentum": "#B8860B", "AdaLS": "#404040", "AdaTCH": "#A63C00", "EPO": "#CC79A7",
    "FERERO": "#8E4585", "FERERO (exact)": "#4B1D52", "PMTL": "#5D3A5A", "equipoise": "#8B0A3D",
}  # fmt: skip
"""One colour per method; families share a hue. The report takes shapes in this order."""
_SPARE = ("#B15928", "#1F9E9E", "#7A0177", "#6B8E23", "#C71585", "#4682B4")


def colour(name: str) -> str:
    """The colour of a method; an unknown method always gets the same one of a few spare colours."""
    return COLOURS.get(name) or _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def style() -> None:
    """Set matplotlib up for figures in a paper."""
    mpl.rcParams.update({
        "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8,
        "ytick.labelsize": 8, "axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 200,
        "savefig.bbox": "tight", "pdf.fonttype": 42,
    })  # fmt: skip


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as PDF; returns the two paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    for path in paths:
        # A fixed date makes the file reproducible.
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths
