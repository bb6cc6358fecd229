"""The page in a real browser, beside a real training: a person drags the ray, and λ follows."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser import browser, keep, needs_chromium, sync_api, watched

from equipoise import metrics
from equipoise.problems import VLMOP2
from equipoise.train.steering import STATUS, read_status

__all__ = ["browser"]  # a fixture
pytestmark = needs_chromium


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Open an address; at the end there must have been no error and no request to anywhere else."""
    opened = []

    def go(address: str, width: int = 1280, scheme: str = "light") -> Any:
        page, seen = watched(browser, address, width, color_scheme=scheme)
        opened.append(seen)
        return page

    yield go
    for seen in opened:
        seen.context.close()
        expected = ("ERR_CONNECTION_REFUSED", "status of 400")  # of the tests that ask for these
        assert [error for error in seen.errors if not any(one in error for one in expected)] == []
        own = {seen.url, f"{seen.url}status", f"{seen.url}wish"}
        assert {url for url in seen.requests if not url.startswith("data:")} <= own


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+", text)]


def shown(page: Any, place: str) -> list[float]:
    return numbers(page.locator(place).inner_text())


def weights(page: Any) -> list[float]:
    return [float(text) for text in page.locator("#numbers .weight").all_inner_texts()]


def drag(page: Any, across: float, up: float) -> None:
    """Move the handle of the ray to a place of the picture, in shares of its size."""
    handle, plot = page.locator("#handle").bounding_box(), page.locator("#front svg.plot").bounding_box()
    page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
    page.mouse.down()
    page.mouse.move(plot["x"] + across * plot["width"], plot["y"] + (1 - up) * plot["height"], steps=6)
    page.mouse.up()


def await_state(page: Any, text: str) -> None:
    page.wait_for_function("text => document.getElementById('state').textContent.includes(text)", arg=text)


def test_the_ray_is_dragged_and_lambda_follows(server, train, visit, waits):
    training = train()
    waits(lambda: training.mol.step > 200)
    page = visit(server.address)
    page.wait_for_selector("#handle")
    assert shown(page, "#has") == [0.5, 0.5]
    drag(page, across=0.35, up=0.85)  # a smaller f₁: a larger w₁
    asked = shown(page, "#asked")
    assert asked[0] > 0.6
    waits(lambda: shown(page, "#has") == shown(page, "#asked"))
    assert training.mol.preference.tolist() == pytest.approx(asked, abs=6e-4)
    followed = len(training.mol.preferences)
    assert followed >= 2
    # λ moves to the first loss, which must fall; then the model is where the ray meets the front.
    moved = training.mol.step
    waits(lambda: training.mol.step > moved + 1500)
    losses = VLMOP2().losses(training.x.detach())
    assert float(metrics.imbalance(losses, training.mol.preference)) < 0.1
    assert float(losses[0]) < 0.55
    assert float(losses[1]) > 0.7
    seen = training.mol.history.duals
    assert float(seen[:, 0].max()) > 0.9
    # What the page shows is what the training has, a moment ago.
    training.paused.set()
    waits(lambda: weights(page) == pytest.approx(read_status(training.folder)["now"]["weight"], abs=6e-4))
    assert len(training.mol.preferences) == followed
    assert page.locator("#front path.mark").count() == len(page.evaluate("state.run.points"))
    keep(page, "steer-wide")


def test_a_wrong_token_sees_nothing(server, train, browser):
    train()
    page, answers = browser.new_page(), list[tuple[str, int]]()
    page.on("response", lambda response: answers.append((response.url, response.status)))
    wrong = server.address.replace(server.token, "x" * len(server.token))
    for address in (wrong, f"{wrong}status", server.address.replace(f"{server.token}/", "")):
        with pytest.raises(sync_api.Error, match="ERR_HTTP_RESPONSE_CODE_FAILURE"):  # there is nothing to show
            page.goto(address)
        assert answers.pop(0) == (address, 403)
    page.close()


def test_the_slider_is_worked_with_the_keyboard(server, train, visit, waits):
    training = train()
    page = visit(server.address)
    page.wait_for_selector("#w1")
    page.locator("#w1").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page, "#asked") == pytest.approx([0.505, 0.495])
    waits(lambda: training.mol.preference.tolist() == pytest.approx([0.505, 0.495]))
    page.keyboard.press("Home")
    waits(lambda: training.mol.preference.tolist() == pytest.approx([0.01, 0.99]))


def test_three_objectives_have_three_sliders_and_stay_on_the_simplex(server, train, visit, waits):
    training = train(3)
    page = visit(server.address)
    page.wait_for_selector("#w3")
    assert page.locator("#front input").count() == 3
    for place, value in (("#w1", 0.7), ("#w3", 0.5), ("#w2", 0.99)):
        before = shown(page, "#asked")
        page.locator(place).evaluate("(s, v) => { s.value = v; s.dispatchEvent(new Event('input')); }", value)
        asked = page.evaluate("preference()")
        assert sum(asked) == pytest.approx(1.0)
        assert min(asked) > 0
        assert asked[int(place[-1]) - 1] == pytest.approx(value, abs=5e-3)
        others = [k for k in range(3) if k != int(place[-1]) - 1]
        if value < 0.9:  # the others keep their proportions
            ratio = before[others[0]] / before[others[1]]
            assert asked[others[0]] / asked[others[1]] == pytest.approx(ratio, rel=0.02)
        waits(lambda asked=asked: training.mol.preference.tolist() == pytest.approx(asked, abs=1e-6))
    assert page.locator("#front path.curve").count() >= 1
    assert page.locator("#numbers tbody tr").count() == 3


def test_names_are_text(server, train, visit):
    train()
    page = visit(server.address)
    page.wait_for_selector("#numbers tbody tr")
    assert page.locator("#numbers tbody th").first.inner_text() == "left <b>"
    assert page.locator("main b").count() == 0


def test_the_page_says_when_the_training_stalls_goes_on_and_ends(server, train, visit):
    training = train()
    page = visit(server.address)
    await_state(page, "Training, step")
    training.paused.set()
    # In one evaluation, so that no state from the server comes between.
    shows = "age => { hear({...state.run, age}); return document.querySelector('#state').innerText }"
    assert "No news for 34 s: the training stalled, or was killed" in page.evaluate(shows, 34.0)
    training.paused.clear()
    await_state(page, "Training, step")
    training.end()
    await_state(page, "The training has ended after step")
    assert page.locator("#w1").is_disabled()
    before = shown(page, "#asked")
    drag(page, across=0.3, up=0.9)
    assert shown(page, "#asked") == before
    assert not (training.folder / "wish.json").exists()


def test_the_page_says_when_there_is_nothing_or_something_damaged(server, train, visit):
    page = visit(server.address)
    await_state(page, "No training has written here yet")
    train().end()
    await_state(page, "The training has ended")
    (server.folder / STATUS).write_text("damaged")
    await_state(page, "The state of the run cannot be read")


def test_the_page_says_when_its_server_ends(server, train, visit):
    train()
    page = visit(server.address)
    await_state(page, "Training, step")
    server.shutdown()
    server.server_close()
    await_state(page, "server has ended")


def test_a_refusal_is_shown(server, train, visit):
    train()
    page = visit(server.address)
    page.wait_for_selector("#w1")
    page.evaluate("ask([0.5, 0.6])")
    page.wait_for_selector(".refused")
    assert "Refused: a wish must be a preference of 2 numbers" in page.locator(".refused").inner_text()
    assert shown(page, "#asked") == [0.5, 0.5]


def test_nothing_overflows_on_a_phone_and_dark_follows_the_system(server, train, visit, waits):
    training = train()
    waits(lambda: training.mol.step > 100)
    page = visit(server.address, width=390, scheme="dark")
    page.wait_for_selector("#chart-loss path.curve")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cut = page.evaluate("""() => [...document.querySelectorAll('main p, main h2, button, label, td, .state')]
      .filter((e) => e.getBoundingClientRect().right > 390).map((e) => e.outerHTML)""")
    assert cut == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    keep(page, "steer-phone")
