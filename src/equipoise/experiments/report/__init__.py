"""One self-contained HTML page of results: a front explorer, tables beside the paper's, training curves.

`sources` reads cells and the files of a user's own runs; `fronts`, `tables` and `training` turn them into plain
records; `html` renders these with the template, style and script in the folder `page`.
"""

from equipoise.experiments.report.gather import gather, sections
from equipoise.experiments.report.html import render

__all__ = ["gather", "render", "sections"]
