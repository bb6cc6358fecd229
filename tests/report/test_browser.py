"""The report in a real browser: its content, and its response to slider, pointer and keyboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import browser, keep, needs_chromium, watched

from equipoise import metrics, preference
from equipoise.problems import VLMOP2

__all__ = ["browser"]  # a fixture
pytestmark = needs_chromium


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Open a file; at the end there must have been no error and no request but for the file itself."""
    opened = []

    def go(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        page, seen = watched(browser, path.as_uri(), width, color_scheme=scheme, offline=True)
        opened.append(seen)
        return page

    yield go
    for seen in opened:
        seen.context.close()
        assert seen.errors == []
        assert [url for url in seen.requests if not url.startswith("data:")] == [seen.url]


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+", text)]


def slide(page: Any, value: float) -> None:
    page.locator("#w1").evaluate("(s, v) => { s.value = v; s.dispatchEvent(new Event('input')); }", value)


def asked(page: Any) -> list[float]:
    return numbers(page.locator("#asked").inner_text())


def test_the_full_report_is_small_and_opens_fast(page_file, visit):
    assert page_file.stat().st_size < 8e6
    page = visit(page_file)
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < timing < 2000
    assert page.locator("#set option").count() == 14
    assert page.locator("details table").count() >= 5
    assert page.locator("#task option").count() >= 3
    keep(page, "light")


def test_the_slider_moves_the_chosen_solution(page_file, visit):
    page = visit(page_file)
    w, problem = preference.linspace(10), VLMOP2()
    for index, value in ((0, 0.01), (7, 0.775)):  # 0.775 lies between two computed ones, 0.772 is nearer
        slide(page, value)
        assert numbers(page.locator("#nearest").inner_text()) == pytest.approx(w[index].tolist(), abs=6e-4)
        exact = problem.solution(w[index])
        f = numbers(page.locator('#solutions tr[data-method="TCH"] .f').inner_text())
        assert f == pytest.approx([*exact.tolist(), *(w[index] * exact).tolist()], abs=6e-5)
        off = exact + 0.01
        angle = numbers(page.locator('#solutions tr[data-method="AdaOMDgd-TCH"] .off').inner_text())
        degrees = float(metrics.angle(off, w[index]).rad2deg())
        assert angle[0] == pytest.approx(degrees, abs=6e-3)
        if len(angle) > 1:
            assert angle[1] == pytest.approx(100 * float(metrics.imbalance(off, w[index])), abs=0.06)
    slide(page, 0.554)
    page.select_option("#seed", label="19")
    moved = (problem.solution(w[5]) + 0.02).tolist()
    f = numbers(page.locator('#solutions tr[data-method="STCH"] .f').inner_text())
    assert f[:2] == pytest.approx(moved, abs=6e-5)


def test_the_slider_is_worked_with_the_keyboard(page_file, visit):
    page = visit(page_file)
    slide(page, 0.5)
    page.locator("#w1").focus()
    page.keyboard.press("ArrowRight")
    assert asked(page) == pytest.approx([0.505, 0.495])
    page.keyboard.press("Home")
    assert asked(page) == pytest.approx([0.01, 0.99])


def place(page: Any, f: list[float]) -> tuple[float, float]:
    """Where on the screen a point of the objective plane is, from the labels of the axes."""
    page.locator("#front svg.plot").scroll_into_view_if_needed()
    read = """() => {
      const texts = [...document.querySelectorAll('#front svg.plot > text')].map((t) => {
        const box = t.getBoundingClientRect();
        return [Number(t.textContent), t.getAttribute('text-anchor'), box.x + box.width / 2, box.y + box.height / 2];
      }).filter(([value]) => !Number.isNaN(value) && value !== null);
      return [texts.filter((t) => t[1] === 'middle'), texts.filter((t) => t[1] === 'end')];
    }"""
    horizontal, vertical = page.evaluate(read)

    def along(labels, axis, value):
        (a, *_), (b, *_) = labels[0], labels[-1]
        return labels[0][axis] + (value - a) / (b - a) * (labels[-1][axis] - labels[0][axis])

    return along(horizontal, 2, f[0]), along(vertical, 3, f[1])


def test_clicking_the_front_sets_the_preference_that_leads_there(page_file, visit):
    page = visit(page_file)
    f = VLMOP2().front(241)[80]
    page.mouse.click(*place(page, f.tolist()))
    assert asked(page) == pytest.approx(preference.through(f).tolist(), abs=0.01)
    slide(page, 0.5)
    x, y = place(page, f.tolist())
    page.mouse.click(x - 18, y + 18)  # beside it, as a finger is
    assert asked(page) == pytest.approx(preference.through(f).tolist(), abs=0.1)
    before = asked(page)
    assert "the ring is where the ray meets it" in page.locator("#front figcaption").inner_text()
    page.mouse.click(*place(page, [0.2, 0.2]))  # far from the front
    assert asked(page) == before


def test_the_ray_is_dragged(page_file, visit):
    page = visit(page_file)
    slide(page, 0.5)
    box = page.locator("#handle").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(*place(page, [0.3, 0.9]), steps=4)
    page.mouse.up()
    assert asked(page) == pytest.approx([0.75, 0.25], abs=0.01)


def test_hover_zoom_and_legend(page_file, visit):
    page = visit(page_file)
    exact = VLMOP2().solution(preference.linspace(10)[2])
    page.mouse.move(*place(page, exact.tolist()))
    assert "asked for w = (0.228, 0.772)" in page.locator("#front .tip").inner_text()
    labels = "#front svg.plot > text"
    before = page.locator(labels).all_inner_texts()
    page.locator("#front").get_by_role("button", name="Zoom in").click()
    assert page.locator(labels).all_inner_texts() != before
    page.locator("#front").get_by_role("button", name="Reset the zoom").click()
    assert page.locator(labels).all_inner_texts() == before
    start, end = place(page, [0.1, 0.6]), place(page, [0.3, 0.2])
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()
    assert page.locator(labels).all_inner_texts() != before
    page.locator("#front svg.plot").dblclick(position={"x": 300, "y": 400})
    assert page.locator(labels).all_inner_texts() == before
    page.locator("#explorer .legend").get_by_role("button", name="PMTL").click()
    page.locator("#explorer .legend").get_by_role("button", name="LS", exact=True).click()
    shown = page.locator("#solutions tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.method)")
    assert shown == ["TCH", "STCH", "OMDgd-TCH", "AdaOMDgd-TCH", "PMTL"]


def test_tables_sort_and_are_coloured_by_agreement(page_file, visit):
    page = visit(page_file)
    table = page.locator("details table").first

    def column():
        return [numbers(text)[0] for text in table.locator("tbody td:nth-child(2)").all_inner_texts()]

    def names():
        return table.locator("tbody th").all_inner_texts()

    papers_order = names()
    assert papers_order[:3] == ["LS", "TCH", "STCH"]
    head = table.get_by_role("button", name="VLMOP2")
    head.click()
    assert table.locator("th[aria-sort=descending]").inner_text() == "VLMOP2"
    assert column() == sorted(column(), reverse=True)
    head.focus()
    page.keyboard.press("Enter")
    assert table.locator("th[aria-sort=ascending]").inner_text() == "VLMOP2"
    assert column() == sorted(column())
    page.keyboard.press("Enter")
    assert names() == papers_order
    # TCH was made up to be 0.1 off, and of ExcessMTL nothing is claimed.
    marks = {row: table.locator(f"tbody tr:nth-child({k + 1}) td").first for k, row in enumerate(names())}
    assert "differs" in marks["TCH"].get_attribute("class")
    assert "✗" in marks["TCH"].inner_text()
    assert "paper 0.295" in marks["TCH"].inner_text()
    assert "agrees" in marks["LS"].get_attribute("class")
    assert not {"agrees", "differs"} & set(marks["ExcessMTL"].get_attribute("class").split())


def test_every_picture_and_table_has_its_command(page_file, visit):
    page = visit(page_file)
    assert page.locator("figure").count() == 5 + 1 + 3
    for figure in page.locator("figure, details").all():
        assert figure.locator(".command code").count() == 1
    assert page.locator("#boxes code").inner_text() == "equipoise reproduce fig-box --task mnist-rotation"
    assert page.locator("#front code").inner_text() == "equipoise reproduce table-hv"


def test_training_pictures(page_file, visit):
    page = visit(page_file)
    curves = page.locator("#curves path.curve")
    assert curves.count() == 7
    page.locator("#training .legend").first.get_by_role("button", name="qFFL").click()
    assert curves.count() == 8
    assert page.locator("#boxes rect.quartiles").count() == 8
    assert page.locator("#scatter path.mark").count() == 8
    assert page.locator("#weights rect").count() == 1 + 60 * 10  # the clip, and a rectangle per client and round
    page.select_option("#task", label="mnist-class2")
    assert page.locator("#boxes code").inner_text() == "equipoise reproduce fig-box --task mnist-class2"
    assert page.locator("#archive path.curve").count() == 2
    assert page.locator("#log0-lambda path.curve").count() == 2
    assert page.locator("#log0-archive path.curve").count() == 1


def background(page: Any) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_dark_mode_follows_the_system_and_the_button(page_file, visit):
    white = "rgb(255, 255, 255)"
    page = visit(page_file, scheme="dark")
    assert background(page) != white
    keep(page, "dark")
    page.locator("#theme").click()
    assert background(page) == white
    page = visit(page_file)
    assert background(page) == white
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert background(page) != white
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"


def test_nothing_overflows_on_a_phone(page_file, visit):
    page = visit(page_file, width=390)
    page.evaluate("document.querySelectorAll('details').forEach((table) => (table.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # Nothing is cut off either: but for what scrolls within itself, all text ends inside the page.
    cut = page.evaluate("""() => [...document.querySelectorAll('main p, main h2, main h3, button, select, code, label')]
      .filter((e) => !e.closest('.scroll') && e.getBoundingClientRect().right > 390).map((e) => e.outerHTML)""")
    assert cut == []
    keep(page, "phone")


def test_three_objectives_have_three_sliders(tmp_path, visit, write_page):
    w = [[0.2, 0.3, 0.5], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]]
    record = {"problem": "DTLZ2", "method": "TCH", "seeds": [0], "preferences": w, "losses": [[[0.1, 0.2, 0.3]] * 3]}
    (tmp_path / "solved.json").write_text(json.dumps(record))
    page = visit(write_page(tmp_path / "page.html", [tmp_path]))
    assert page.locator("#explorer input[type=range]").count() == 3
    page.locator("#w3").evaluate("s => { s.value = 0.9; s.dispatchEvent(new Event('input')); }")
    assert sum(asked(page)) == pytest.approx(1, abs=2e-3)
    assert numbers(page.locator("#nearest").inner_text()) == [0.1, 0.1, 0.8]
    assert numbers(page.locator("#solutions .f").inner_text()) == [0.1, 0.2, 0.3, 0.01, 0.02, 0.24]


HOSTILE = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'><b>bold</b>"


def test_hostile_strings_are_text(tmp_path, visit, write_page, write_table):
    write_table(tmp_path, ["F1"])
    record = {"problem": HOSTILE, "method": HOSTILE, "seeds": [0], "preferences": [[0.5, 0.5]] * 2}
    (tmp_path / "x.json").write_text(json.dumps({**record, "losses": [[[0.1, 0.2]] * 2]}))
    log = {"step": 1, f"lambda/{HOSTILE}": 0.5, f"lambda/{HOSTILE}2": 0.5}
    (tmp_path / f"{HOSTILE.replace('/', '')}.jsonl").write_text(json.dumps(log))
    page = visit(write_page(tmp_path / "page.html", [tmp_path]))
    page.wait_for_timeout(100)
    assert page.evaluate("window.hit") is None
    assert page.locator("b, img").count() == 0
    assert page.locator("script").count() == 2
    assert HOSTILE in page.locator("#solutions th").nth(3).inner_text()


def test_sections_without_results_say_what_makes_some(tmp_path, visit, write_page):
    cut_off = '{"step": 1, "lambda/a": 0.5, "lambda/b": 0.5}\n{"step": 2, "lam'
    (tmp_path / "run.jsonl").write_text(cut_off)
    page = visit(write_page(tmp_path / "page.html", [tmp_path]))
    assert page.locator("#explorer .empty code").inner_text() == "equipoise reproduce table-hv"
    assert page.locator("#tables .empty code").count() == 1
    assert page.locator("#log0-lambda").count() == 1
