"""The report in a real browser: Debian's chromium, driven by playwright, which brings no browser of its own here."""

from __future__ import annotations

import shutil

import pytest

from smoothcert import runs
from smoothcert.data import load
from smoothcert.models.architectures import small_cnn
from smoothcert.models.checkpoints import Blueprint, save_checkpoint
from smoothcert.records import exact_decimal
from smoothcert.report.page import write_report
from smoothcert.report.page.runs import shown_runs
from smoothcert.runs.scope import radii_tested
from smoothcert.stats.accuracy import certified_accuracy, floor_percent
from smoothcert.training.loop import seeded, train
from smoothcert.training.settings import TrainSettings

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
INPUTS = range(0, 490, 10)  # 49: most shares are no round numbers


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Two runs of a small network on the digits, which it has learnt a little, with few draws."""
    folder = tmp_path_factory.mktemp("runs")
    learnt = TrainSettings(sigma=0.25, epochs=4, batch_size=64, learning_rate=0.1, seed=0, device="cpu")
    network = train(seeded(small_cnn, 0), load("digits", split="train"), learnt)
    blueprint = Blueprint(architecture="small-cnn", num_classes=10, input_shape=(1, 8, 8), sigma=0.25)
    save_checkpoint(folder / "m.safetensors", network, blueprint)
    common = {"sigma": 0.25, "n_max": 1_000, "seed": 0, "batch_size": 128, "chunk": 5}
    chosen = {
        "planned": runs.CertifySettings(**common),
        "grid": runs.CertifySettings(**common, radii=(0, 0.1, 0.2, 0.3), known_labels=True),
    }
    model = str(folder / "m.safetensors")
    return [
        runs.certify_dataset(model, load("digits"), folder / name, settings, indices=INPUTS, progress=False)
        for name, settings in chosen.items()
    ]


@pytest.fixture(scope="module")
def report(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(found, path)
    return path


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser, report):
    """The page, and what it asked for and complained about: checked when the test is done."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    yield page
    context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]


def expected(run, radius: float) -> tuple[str, list[str]]:
    """Certified accuracy and the inputs that fail at a radius, from the run's own table."""
    table = run.table()
    share = certified_accuracy(table["radius"], table["correct"], radius)
    rows = zip(table["index"], table["correct"], table["radius"], strict=True)
    return f"{floor_percent(share)} %", [str(index) for index, right, found in rows if not (right and found >= radius)]


def failing(page, number: int) -> list[str]:
    """The inputs that the page lists, once all are unfolded."""
    while (more := page.locator("#failing > div").nth(number).locator("button")).count():
        more.click()
    return page.locator(f"#failing table[data-run='{number}'] tbody th").all_inner_texts()


def said(page) -> list[str]:
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in page.locator("#now p").all_inner_texts()]


def pick(page, radius: float) -> None:
    page.locator("#radius-number").fill(str(radius))


def test_a_chosen_radius_tells_accuracy_and_the_inputs_that_fail(opened, found):
    listed = []
    table = found[0].table()
    certified = [radius for radius, right in zip(table["radius"], table["correct"], strict=True) if right]
    for radius in sorted([0, 0.1, 0.2, 0.2345, 0.3, certified[0]]):  # the last one is reached, and just so
        pick(opened, radius)
        for number, (run, line) in enumerate(zip(found, said(opened), strict=True)):
            known = next((one for one in radii_tested(run) or (radius,) if one >= radius), None)
            if known is None:
                assert line == f"Grid: not tested at radius {radius}; the largest tested is 0.3"
                assert opened.locator("#failing > *").nth(number).inner_text().endswith("was not tested.")
                continue
            share, indices = expected(run, known)
            bound = "" if known == radius else "at least "
            assert f": {bound}{share} ({len(INPUTS) - len(indices)} of {len(INPUTS)} inputs)" in line
            assert f"radius {exact_decimal(known)};" in line
            assert failing(opened, number) == indices
        listed.append(len(failing(opened, 0)))
    assert listed == sorted(listed)
    assert listed[0] < listed[-1]


def test_the_slider_and_the_number_go_together(opened):
    opened.locator("#radius-range").fill("0.2")
    assert opened.locator("#radius-number").input_value() == "0.2"
    assert "radius 0.2;" in said(opened)[0]
    pick(opened, 0.1)
    assert opened.locator("#radius-range").input_value() == "0.1"


def test_radii_off_the_scale_change_nothing(opened):
    before = said(opened)
    for typed in ("-1", "99", ""):
        opened.locator("#radius-number").fill(typed)
        assert said(opened) == before


def test_the_pointer_shows_the_values_under_it(opened, found):
    plot, tip = opened.locator("#plot"), opened.locator(".tip")
    assert not tip.is_visible()
    plot.hover()
    assert tip.is_visible()
    first, *lines = tip.inner_text().replace("\N{NO-BREAK SPACE}", " ").splitlines()
    radius = float(first.removeprefix("radius "))
    text = " ".join(lines)
    assert expected(found[0], radius)[0] in text
    assert radius > 0.3
    assert "not tested" in text
    opened.mouse.move(5, 5)
    assert not tip.is_visible()


def test_a_click_on_the_curve_chooses_the_radius(opened):
    opened.locator("#plot").click()
    radius = opened.locator("#radius-number").input_value()
    assert f"radius {radius};" in said(opened)[0]


def test_the_pointer_s_values_stay_within_the_page_on_a_phone(opened):
    opened.set_viewport_size({"width": 360, "height": 700})
    width = opened.locator("#plot").bounding_box()["width"]
    for share in (0.01, 0.5, 0.99):
        opened.locator("#plot").hover(position={"x": share * width, "y": 60})
        box = opened.locator(".tip").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_run_that_is_switched_off_is_gone_and_comes_back(opened):
    lines, box = opened.locator(".plot .curve"), opened.locator("#toggles input").first
    assert [lines.nth(k).is_visible() for k in range(2)] == [True, True]
    box.uncheck()
    assert [lines.nth(k).is_visible() for k in range(2)] == [False, True]
    assert len(said(opened)) == 1
    opened.locator("#toggles input").nth(1).uncheck()
    assert said(opened) == ["No run is chosen."]
    box.check()
    assert [lines.nth(k).is_visible() for k in range(2)] == [True, False]


def test_the_keyboard_moves_the_radius(opened):
    plot, number = opened.locator("#plot"), opened.locator("#radius-number")
    plot.focus()
    assert opened.locator(".tip").is_visible()
    opened.keyboard.press("Home")
    assert number.input_value() == "0"
    opened.keyboard.press("ArrowRight")
    step = float(number.input_value())
    assert step > 0
    opened.keyboard.press("PageUp")
    assert float(number.input_value()) == pytest.approx(11 * step)
    opened.keyboard.press("ArrowLeft")
    assert float(number.input_value()) == pytest.approx(10 * step)
    opened.keyboard.press("End")
    assert plot.get_attribute("aria-valuenow") == plot.get_attribute("aria-valuemax")
    spoken = plot.get_attribute("aria-valuetext")
    assert "Planned 0.0" in spoken
    assert "Grid 0.0" in spoken, "a thousand draws do not reach this far"


def test_everything_is_reached_by_tab_and_shows_its_focus(opened):
    reached = []
    for _ in range(40):
        opened.keyboard.press("Tab")
        reached.append(opened.evaluate("document.activeElement.id || document.activeElement.type || ''"))
        if reached[-1] == "plot":
            assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert {"plot", "checkbox", "radius-range", "radius-number"} <= set(reached)


def test_every_control_has_a_name(opened):
    """By the browser's own reckoning of what a screen reader hears."""
    client = opened.context.new_cdp_session(opened)
    controls = {"checkbox", "slider", "spinbutton", "button", "link", "region", "status", "image", "DisclosureTriangle"}
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in controls - {"status"}]
    assert [node for node in seen if not node.get("name", {}).get("value")] == []
    assert {"checkbox", "slider", "spinbutton", "link"} <= {node["role"]["value"] for node in seen}


def test_failing_inputs_lead_to_their_pictures(opened):
    pick(opened, 0.3)
    link = opened.locator("#failing a").first
    target = link.get_attribute("href")
    link.click()
    assert opened.locator(f"{target} img").count() == 3
    natural = opened.evaluate("[...document.images].map((one) => one.naturalWidth)")
    assert set(natural) == {8}


def test_without_scripts_the_curve_and_the_tables_are_there(browser, report, found):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    text = page.inner_text("body").replace("\N{NO-BREAK SPACE}", " ")
    assert page.locator(".plot .curve").count() == 2
    assert not page.locator("#picker").is_visible()
    assert all(expected(run, 0.1)[0] in text for run in found)
    assert all(shown.name in text for shown in shown_runs(found))
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_phones_and_screens_in_light_and_dark(browser, report, tmp_path, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(report.as_uri())
    picture = page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
    assert len(picture) > 50_000
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()


def test_in_print_everything_is_unfolded_on_white_paper(browser, report):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate("[...document.querySelectorAll('details')].every((one) => one.open)")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#radius-range").is_visible()
    context.close()
