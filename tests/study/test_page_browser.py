"""The page in a real browser without a network: charts drawn, numbers there, hover and click by real input events."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from altered import BASE, study, with_text
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from playwright.sync_api import TimeoutError as NotInTime

from relpos.study import StudyResult, write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><img src=x onerror=alert(1)><script>alert(2)</script>'\"&"

# .ci/run sets RELPOS_BROWSER=required: there, no browser is a failure and not a reason to skip.
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("RELPOS_BROWSER") != "required",
    reason="no Chromium on this machine (Debian: apt-get install chromium)",
)


@dataclass
class Opened:
    """A page that was opened, and everything that it asked for or said."""

    page: Page
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def marks(self, chart: str, kind: str) -> Locator:
        """The drawn marks of one kind in one chart."""
        return self.page.locator(f"#{chart} g.mark-{kind} > path")

    def tooltip(self) -> str:
        """What the tooltip that is shown says, in one line."""
        shown = self.page.locator("#vg-tooltip-element.visible")
        shown.wait_for(timeout=2000)
        return re.sub(r"\s+", " ", shown.inner_text()).strip()


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[[], Browser]]:
    """Starts a browser."""
    assert CHROMIUM is not None, "RELPOS_BROWSER=required, and there is no Chromium on this machine"
    # No name resolves and the only way out is a port on which nobody listens.
    cut_off = ["--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--disable-background-networking"]
    with sync_playwright() as playwright:
        yield lambda: playwright.chromium.launch(executable_path=CHROMIUM, args=cut_off)


@pytest.fixture(scope="module")
def browser(launch: Callable[[], Browser]) -> Browser:
    return launch()


def open_study(browser: Browser, found: StudyResult, folder: Path, width: int = 1440) -> Opened:
    """The page of a study, drawn, in a browser window of its own."""
    path = write_page(found, folder)
    opened = Opened(browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light").new_page())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("console", lambda message: opened.said.append(message.text))
    opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.page.on("dialog", lambda dialog: (opened.said.append(dialog.message), dialog.dismiss()))
    opened.page.goto(path.as_uri())
    # By the clock: "in the next frame" never comes in a browser that stopped making frames (see `makes_frames`).
    opened.page.wait_for_function("document.documentElement.dataset.drawn", timeout=60_000, polling=50)
    assert opened.requests == [path.as_uri()]
    return opened


@pytest.fixture(scope="module")
def _windows() -> list[Opened]:
    return []


@pytest.fixture
def opened(launch: Callable[[], Browser], _windows: list[Opened], tmp_path: Path) -> Iterator[Opened]:
    """The altered study on a wide screen, in one window while it makes frames: each test leaves it as it found it.

    After each test it has asked for nothing but itself, and said nothing.
    """
    if not _windows or not makes_frames(_windows[-1].page):
        _windows.append(open_study(launch(), study(), tmp_path))
    window = _windows[-1]
    window.page.mouse.move(5, 5)
    yield window
    assert len(window.requests) == 1
    assert window.said == []
    assert window.page.locator(".faded").count() == 0


def test_the_browser_has_no_network(browser: Browser) -> None:
    page = browser.new_page()
    with pytest.raises(Exception, match="ERR_"):
        page.goto("http://example.org", timeout=5000)
    page.close()


def test_every_chart_is_drawn(opened: Opened) -> None:
    page = opened.page
    places = page.locator("[data-chart]").evaluate_all("all => all.map(each => each.id)")
    assert len(places) == 1 + 3 + 9 + 8
    assert page.evaluate("document.documentElement.dataset.drawn") == str(len(places))
    for place in places:
        box = page.locator(f"#{place} svg").bounding_box()
        assert box is not None
        assert box["width"] > 80
        assert box["height"] > 50
    # One line a scheme; a point, and the wide invisible one over it, for each perplexity that is defined.
    lines = opened.marks("perplexity", "line")
    assert lines.count() == len(BASE)
    assert all(len(path or "") > 4 for path in lines.evaluate_all("all => all.map(each => each.getAttribute('d'))"))
    defined = sum(value is not None for values in BASE.values() for value in values)
    assert opened.marks("perplexity", "symbol").count() == 2 * defined
    assert opened.marks("position-16", "line").count() == len(BASE)
    assert opened.marks("position-128", "line").count() == len(BASE) - 1
    assert opened.marks("position-128", "symbol").count() == 2 * 7 * (len(BASE) - 1)
    for index, name in enumerate(BASE):
        assert opened.marks(f"attention-{index}-16", "rect").count() == 5 * 5
        assert opened.marks(f"attention-{index}-128", "rect").count() == (0 if name == "learned" else 5 * 8)


def test_names_stand_at_the_ends_of_the_lines(opened: Opened) -> None:
    texts = opened.page.locator("#perplexity g.mark-text.role-mark text")
    assert {*BASE, "learned (undefined beyond 16)"} - {"learned"} == set(texts.all_text_contents())
    chart = opened.page.locator("#perplexity svg").bounding_box()
    assert chart is not None
    for right in texts.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)"):
        assert right <= chart["x"] + chart["width"] + 1


def test_every_perplexity_is_in_the_tables(opened: Opened) -> None:
    for rule in ("non_overlapping", "sliding"):
        rows = opened.page.locator(f"table[data-table={rule}] tbody tr").evaluate_all(
            "all => all.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        assert {name: cells for name, *cells in rows} == {
            name: ["undefined" if value is None else f"{value:.2f}" for value in values]
            for name, values in BASE.items()
        }


def test_hover_shows_the_value_under_the_pointer(opened: Opened) -> None:
    """Every point that is not under another one says its own scheme, length and perplexity."""
    page, seen = opened.page, set()
    page.locator("#perplexity").scroll_into_view_if_needed()
    for x, y in set(middles(opened, "perplexity")):
        page.mouse.move(x, y)
        words = opened.tooltip().replace(",", "")
        found = re.fullmatch(r"scheme (\w+) length (\d+) perplexity ([\d.]+)", words)
        assert found is not None, words
        seen.add((found[1], int(found[2]), float(found[3])))
    wanted = {
        (name, length, value)
        for name, values in BASE.items()
        for length, value in zip((16, 32, 128), values, strict=True)
        if value is not None
    }
    assert seen <= wanted
    assert {("sinusoidal", 128, 27.0), ("rope", 128, 16.0), ("nope", 16, 8.0)} <= seen
    assert len(seen) >= len(wanted) - 6
    page.mouse.move(5, 5)
    page.locator("#vg-tooltip-element.visible").wait_for(state="detached", timeout=2000)


def test_hover_on_heat_maps_and_positions(opened: Opened) -> None:
    page = opened.page
    place = f"attention-{list(BASE).index('t5')}-128"
    page.locator(f"#{place}").scroll_into_view_if_needed()
    cells = opened.marks(place, "rect")
    cells.nth(1).hover()
    assert opened.tooltip() == "head 1.1 bytes back 1 share of its attention 100.00%"
    cells.nth(8 + 3).hover()
    assert opened.tooltip() == "head 1.2 bytes back 4 to 7 share of its attention 100.00%"
    page.locator("#position-128").scroll_into_view_if_needed()
    opened.marks("position-128", "symbol").last.hover(force=True)
    assert opened.tooltip() == "scheme rope positions 64 to 127 mean loss 2.773"  # log 16


def opacities(opened: Opened, chart: str) -> list[float]:
    return opened.marks(chart, "line").evaluate_all("all => all.map(each => Number(each.getAttribute('opacity') ?? 1))")


def middles(opened: Opened, chart: str) -> list[tuple[float, float]]:
    """Where on the screen the visible points of a chart are, scheme after scheme."""
    boxes = [point.bounding_box() for point in opened.marks(chart, "symbol").all()]
    return [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes if box]


def test_a_click_singles_a_scheme_out_everywhere(opened: Opened) -> None:
    """On a point, between two points of a line, and on a name of the row above; a second click shows all again."""
    page, index = opened.page, list(BASE).index("sinusoidal")
    page.locator("#perplexity").scroll_into_view_if_needed()
    points = middles(opened, "perplexity")
    (x1, y1), (x2, y2) = points[5], points[6]  # three of nope, one of learned, and these are sinusoidal's last two
    chip = page.get_by_role("button", name="sinusoidal")
    clicks: list[Callable[[], None]] = [
        lambda: page.mouse.click(x2, y2),
        lambda: page.mouse.click((x1 + x2) / 2, (y1 + y2) / 2),
        chip.click,
    ]
    for click in clicks:
        assert set(opacities(opened, "perplexity")) == {1.0}
        click()
        page.wait_for_timeout(150)
        assert chip.get_attribute("aria-pressed") == "true"
        for chart in ("perplexity", "position-16"):
            shown = opacities(opened, chart)
            assert shown[index] == 1.0
            assert [value for rank, value in enumerate(shown) if rank != index] == [0.1] * (len(BASE) - 1)
        faded = page.locator("[data-scheme].faded").evaluate_all("all => all.map(each => each.dataset.scheme)")
        assert set(faded) == set(BASE) - {"sinusoidal"}
        click()
        page.wait_for_timeout(150)
        assert chip.get_attribute("aria-pressed") == "false"
        assert page.locator(".faded").count() == 0


def test_a_click_beside_the_lines_shows_all_again(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="rope").click()
    box = page.locator("#perplexity svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 30)
    page.wait_for_function("document.querySelector('[data-single=\"\"]').getAttribute('aria-pressed') === 'true'")


def colours(opened: Opened) -> list[str]:
    strokes: list[str] = opened.marks("perplexity", "line").evaluate_all(
        "all => all.map(e => getComputedStyle(e).stroke)"
    )
    ground: str = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [ground, *strokes]


def test_light_and_dark_are_two_drawings_of_one_page(opened: Opened) -> None:
    light = colours(opened)
    opened.page.emulate_media(color_scheme="dark")  # the reader's system changes its mind: the open page follows
    dark = colours(opened)
    opened.page.emulate_media(color_scheme="light")
    assert colours(opened) == light
    assert light[0] == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", dark[0]))) < 40
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert len(set(light)) == len(set(dark)) == 1 + len(BASE)


# What is wider than the screen, or not there. A square of attention that is wider scrolls in its own row.
MISFITS = """width => {
  const charts = [...document.querySelectorAll("[data-chart]")].filter(place => !place.id.startsWith("attention"));
  const found = charts.filter(place => {
    const box = place.querySelector("svg")?.getBoundingClientRect();
    return !(box && box.left >= 0 && box.right <= width + 1);
  }).map(place => place.id);
  return document.documentElement.scrollWidth > width ? ["page", ...found] : found;
}"""
WIDTHS = (1440, 768, 390, 320)
SEEDS = ({}, {"t5": (5.0, 4.0, 4.0)})  # several, whose numbers are longer


def check_marks(opened: Opened, width: int) -> None:
    """A line for each scheme, with names at the ends where there is room."""
    for place, lines in (("perplexity", len(BASE)), ("position-128", len(BASE) - 1)):
        assert opened.marks(place, "line").count() == lines
    names = opened.page.locator("#perplexity g.mark-text.role-mark text").count()
    assert (names > len(BASE)) == (width > 640)
    assert opened.said == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen(browser: Browser, tmp_path: Path, width: int) -> None:
    """From a wide screen to a narrow phone."""
    opened = open_study(browser, study(seeds=SEEDS), tmp_path, width)
    assert opened.page.evaluate(MISFITS, width) == []
    check_marks(opened, width)


def makes_frames(page: Page) -> bool:
    """Whether the browser makes frames: a headless Chromium now and then stops, for good, and then nothing resizes."""
    script = "new Promise(say => { requestAnimationFrame(() => say(true)); setTimeout(() => say(false), 1000); })"
    made: bool = page.evaluate(script)
    return made


def follows(opened: Opened, width: int) -> bool:
    """Whether the open page is drawn anew for another width, names and all, within ten seconds."""
    opened.page.set_viewport_size({"width": width, "height": 800})
    names = "document.querySelectorAll('#perplexity g.mark-text.role-mark text').length"
    drawn = f"width => !({MISFITS})(width).length && ({names} > {len(BASE)}) == (width > 640)"
    try:
        opened.page.wait_for_function(drawn, arg=width, timeout=10_000, polling=50)
    except NotInTime:
        return False
    return True


def test_an_open_page_follows_its_window(launch: Callable[[], Browser], tmp_path: Path) -> None:
    """Unless the browser stopped making frames: then in another one."""
    for _ in range(5):
        opened = open_study(launch(), study(seeds=SEEDS), tmp_path)
        for width in (*WIDTHS, WIDTHS[0]):
            if not follows(opened, width):
                break
            check_marks(opened, width)
        else:
            return
        assert not makes_frames(opened.page), f"after ten seconds not drawn for a window {width} wide"
    pytest.fail("no browser made frames")


def test_hostile_text_is_text(launch: Callable[[], Browser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every field that a file can bring, names of schemes included."""
    monkeypatch.setattr("relpos.study.config.check_scheme_name", lambda name: None)
    opened = open_study(launch(), with_text(study({EVIL: (40.0, 40.0, None)}), EVIL), tmp_path)
    page = opened.page
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator("main").inner_text().count(EVIL) >= 15
    assert f"{EVIL} (undefined beyond 32)" in page.locator("#perplexity g.mark-text.role-mark text").all_text_contents()
    page.locator("#perplexity").scroll_into_view_if_needed()
    opened.marks("perplexity", "symbol").last.hover(force=True)
    assert opened.tooltip() == f"scheme {EVIL} length 32 perplexity 40.000"
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function("document.querySelectorAll('.faded').length > 0", polling=50)
    chip = page.locator(".chip", has_text=EVIL)
    assert chip.get_attribute("aria-pressed") == "true"
    assert opened.said == []
    assert len(opened.requests) == 1


def test_the_page_of_a_real_run(finished: tuple[Path, StudyResult], browser: Browser) -> None:
    """As `relpos study` left it: two schemes, one of them undefined beyond the trained length, two seeds."""
    folder, _ = finished
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto((folder / "report.html").as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn", timeout=30_000, polling=50)
    trials = json.loads((folder / "results.json").read_text())["trials"]
    cells = page.locator("table[data-table=non_overlapping] td").all_inner_texts()
    for scheme in ("learned", "rope"):
        for window in (16, 32, 64):
            found = [
                score["perplexity"]
                for trial in trials
                for score in trial["scores"]
                if (trial["config"]["scheme"], score["window"], score["rule"]) == (scheme, window, "non_overlapping")
            ]
            if None in found:
                assert cells.count("undefined") == 2
            else:
                assert f"{sum(found) / 2:.2f} ({min(found):.2f} to {max(found):.2f})" in cells
    assert page.locator("#perplexity g.mark-line > path").count() == 2
    assert page.locator("#perplexity g.mark-area > path").count() == 2
    page.close()
    assert said == []
