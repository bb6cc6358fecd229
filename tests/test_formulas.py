"""Formulas of the documentation become MathML when it is built."""

import importlib.util
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / "docs" / "hooks" / "formulas.py"


@pytest.fixture
def hook():
    spec = importlib.util.spec_from_file_location("formulas", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_formula_in_a_line(hook):
    page = hook.on_page_content(r'<p>so <span class="arithmatex">\(a &lt; b_i\)</span>, and</p>')
    assert page.startswith('<p>so <span class="formula"><math')
    assert "<msub>" in page
    assert "&#x0003C;" in page  # <
    assert "arithmatex" not in page


def test_a_numbered_formula(hook):
    page = hook.on_page_content('<div class="arithmatex">\\[\nx^2 \\tag{3}\n\\]</div>')
    assert '<span class="number">(3)</span>' in page
    assert "<msup>" in page
    assert "tag" not in page


def test_every_formula_of_the_pages_can_be_read(hook):
    """A dollar sign that opens a formula is closed, and the converter knows what it says."""
    text = "\n".join((HOOK.parents[1] / name).read_text(encoding="utf-8") for name in ("theory.md", "notes/proofs.md"))
    formulas = [part.strip() for part in text.split("$$")[1::2]]
    assert len(formulas) > 20
    for formula in formulas:
        page = hook.on_page_content(f'<div class="arithmatex">\\[{formula}\\]</div>')
        assert "<math" in page
        assert "<mi>\\" not in page  # what it does not know it leaves as it is


def test_an_index_in_plain_text_is_set_low(hook):
    page = hook.on_page_content(
        "<p>w_i f_i, λ_12 and <code>w_i</code>, <a title='w_i' href='#w_i'>max_i</a>, x_train(1)</p>"
    )
    assert page.startswith('<p><i class="letter">w</i><sub>i</sub> <i class="letter">f</i><sub>i</sub>, ')
    assert '<i class="letter">λ</i><sub>12</sub>' in page
    assert "<code>w_i</code>, <a title='w_i' href='#w_i'>max_i</a>, x_train(1)</p>" in page


def test_letters_of_other_alphabets_and_what_stands_below(hook):
    page = hook.on_page_content(r'<div class="arithmatex">\[\max_{i} \mathcal L(\theta) + \lVert x \rVert\]</div>')
    assert "<munder><mo>max</mo>" in page
    assert "ℒ" in page
    assert page.count('<mo stretchy="false">&#x02016;</mo>') == 2
