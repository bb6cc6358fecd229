"""Every Python block of the README and of the docs runs."""

import os
import re
from pathlib import Path

import pytest
import torch

import equipoise
from equipoise.datasets import MissingDataError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks():
    for page in PAGES:
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)):
            yield pytest.param(code, id=f"{page.name}-{number}")


# Advice of Lightning for large data, and its own use of torch.
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")
@pytest.mark.parametrize("code", list(blocks()))
def test_block_runs(code, monkeypatch):
    if "from transformers import" in code:
        pytest.importorskip("transformers")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shared = ROOT.parent / "shared" / "data"
    if shared.is_dir() and "EQUIPOISE_DATA" not in os.environ:
        monkeypatch.setenv("EQUIPOISE_DATA", str(shared))
    try:
        exec(compile(code, "block", "exec"), {"__name__": "block"})  # noqa: S102
    except MissingDataError as missing:
        pytest.skip(f"needs data: {missing}")


def test_the_loop_of_the_readme_meets_its_preference():
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    names: dict[str, object] = {}
    exec(compile(code, "block", "exec"), names)  # noqa: S102
    mol, losses = names["mol"], names["losses"]
    assert isinstance(mol, equipoise.MultiObjective)
    assert isinstance(losses, torch.Tensor)
    weighted = mol.preference * losses
    assert float(weighted.max() / weighted.min()) < 1.02


class Loggers:
    """Stands for TensorBoard's `SummaryWriter` and for the module `wandb`; it keeps what it is told."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        self.steps: set[int] = set()

    def init(self, project: str) -> "Loggers":
        assert project
        return self

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.told[tag] = scalar_value
        self.steps.add(global_step)

    def log(self, data: dict[str, float], step: int) -> None:
        self.told |= data
        self.steps.add(step)


def test_the_lines_for_loggers_hand_over_every_metric():
    page = (ROOT / "docs" / "training.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    model = torch.nn.Linear(1, 1)
    mol = equipoise.MultiObjective(model, None, {"left": 0.5, "right": 0.5})
    x = model.weight.squeeze()
    mol({"left": x**2, "right": (x - 2) ** 2})
    for code in blocks:
        assert len(code.splitlines()) <= 3
        logger = Loggers()
        there = {"mol": mol, "wandb": logger, "SummaryWriter": lambda logger=logger: logger}
        exec(compile(code, "block", "exec"), there)  # noqa: S102
        assert logger.told == mol.metrics()
        assert logger.steps == {1}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_recipe_for_a_method_works():
    """The file of CONTRIBUTING's recipe is a weighting that obeys its own formula."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = re.findall(r"^    ```python\n(.*?)^    ```", text, re.DOTALL | re.MULTILINE)[0]
    names: dict[str, object] = {"__name__": "recipe"}
    exec(compile(re.sub(r"^    ", "", code, flags=re.MULTILINE), "recipe", "exec"), names)  # noqa: S102
    weighting = names["WorstTwo"]()  # type: ignore[operator]
    losses, w = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.2, 0.5, 0.3])
    coefficients, _ = weighting.update(losses, weighting.init(losses), w)
    torch.testing.assert_close(coefficients, torch.tensor([0.1, 0.0, 0.15]))
    batched = torch.vmap(lambda f: weighting.update(f, weighting.init(f), w)[0])(torch.stack([losses, losses.flip(0)]))
    torch.testing.assert_close(batched[0], coefficients)
    uniform, _ = weighting.update(losses, weighting.init(losses), torch.full((3,), 1 / 3))
    assert float(uniform.sum()) * (3 if weighting.uses_duals else 1) == pytest.approx(1.0)  # what the contract asks for
    mask = torch.tensor([True, True, False])
    absent, _ = weighting.update(-losses, weighting.init(losses), w, mask=mask)
    torch.testing.assert_close(absent, torch.tensor([0.1, 0.25, 0.0]))
