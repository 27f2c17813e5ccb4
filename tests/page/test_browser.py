"""Pages in a real browser: headless Chromium opens what the commands wrote, and is used as a reader would use it.

`NSYSPROF_CHROMIUM` and `NSYSPROF_CHROMEDRIVER` say where browser and driver are, otherwise they are looked for on the
PATH. `NSYSPROF_SCREENSHOTS` names a folder for the pictures that the tests take, to be looked at.
"""

import base64
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.command_line import quietly
from tests.kit.trace import GraphNode, Items, Range, launch_kernel, write

ROOT = Path(__file__).parents[2]
RUN = ROOT / "traces" / "run.sqlite"
TWO = ROOT / "analysis" / "two-ranks"
CHROMIUM = os.environ.get("NSYSPROF_CHROMIUM") or shutil.which("chromium")
DRIVER = os.environ.get("NSYSPROF_CHROMEDRIVER") or shutil.which("chromedriver")
WIDTH, HEIGHT = 1400, 1000

selenium = pytest.importorskip("selenium", reason="needs the dev extra: selenium")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver (.ci/get-chromium)"
)

TIMELINE = "document.querySelector('[data-timeline]').timeline"
# What the tests ask the page; rows of the tree are by range, their cell 6 is the busy time.
SHOWN = """return [...document.querySelectorAll(arguments[0] + ' tbody tr')]
    .filter(row => !row.hidden && row.offsetHeight).map(row => row.cells[0].innerText.trim())"""
NUMBERS = """return [...document.querySelectorAll(arguments[0])]
    .map(each => [each.dataset.key, Number(each.dataset.v)])"""
RANGES = """return [...document.querySelectorAll('#t-ranges tbody tr')]
    .map(row => [row.dataset.path, row.dataset.id, row.dataset.parent, Number(row.cells[6].dataset.v)])"""
LEDGERS = """return [...document.querySelectorAll('[data-ledger]')]
    .map(each => [...each.querySelectorAll('[data-v]')].map(cell => Number(cell.dataset.v)))"""
LONG_OP = f"""const t = {TIMELINE}, row = t.rows.find(row => row.kind === 'ops');
    const least = (t.view.to - t.view.from) / 12;
    const at = [...row.start.keys()].find(i => row.start[i] > t.view.from && row.end[i] - row.start[i] > least);
    return [t.x((row.start[at] + row.end[at]) / 2), row.y + 10]"""
TRAVEL = f"""const done = arguments[0], t = {TIMELINE}, ms = [];
    let boxes = 0, step = 0;
    const go = () => {{
      if (step < 40) t.zoom(0.85, t.length * 0.37);
      else if (step < 80) t.pan(0.1);
      else t.zoom(1 / 0.85, t.length * 0.5);
      requestAnimationFrame(() => requestAnimationFrame(() => {{
        ms.push(t.drawn.ms);
        boxes = Math.max(boxes, t.drawn.boxes);
        if (++step < 120) go();
        else done([ms, boxes, t.rows.reduce((sum, row) => sum + row.marks, 0)]);
      }}));
    }};
    go();"""
# At every zoom, from all to 50 ns, around the middle of what is shown and of marks of every row: those of 2 px or more
# whose middle has the colour of the page. Rows of ops too, where they are drawn one by one.
DRAWN_AT_EVERY_ZOOM = f"""const t = {TIMELINE}, pen = t.canvas.getContext('2d'), missing = [];
    let [zooms, looked] = [0, 0];
    const middles = [t.length / 2];
    for (const row of t.rows) for (const share of [0, 0.5, 1]) {{
      const at = Math.floor(share * (row.marks - 1));
      if (row.marks) middles.push(row.start[at], (row.start[at] + row.end[at]) / 2);
    }}
    for (const middle of new Set(middles)) for (let size = t.length; size >= Math.min(50, t.length); size /= 2.7) {{
      const from = Math.min(Math.max(middle - size / 2, 0), t.length - size);
      t.view = {{from, to: from + size}};
      t.draw();
      zooms += 1;
      for (const row of t.rows) {{
        if (row.kind === 'ops' && (t.level(row) || row.marks < row.of)) continue;
        const line = pen.getImageData(0, Math.round((row.y + row.height - 2) * t.ratio), t.canvas.width, 1).data;
        const [low, high] = t.visible(row);
        for (let at = low; at < high; at++) {{
          const left = Math.max(t.x(row.start[at]), t.left), right = Math.min(t.x(row.end[at]), t.left + t.inner);
          if (right - left < 2) continue;
          looked += 1;
          if (!line[4 * Math.floor((left + right) / 2 * t.ratio) + 3]) missing.push([row.label, at, size, left, right]);
        }}
      }}
    }}
    return [zooms, looked, missing.length, missing.slice(0, 5)]"""
Driver = Any


@pytest.fixture(scope="module")
def browser() -> Iterator[Driver]:
    """A browser that keeps what is said on the console and what is asked of the network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        resize(driver, WIDTH, HEIGHT)
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs a command with ``--html``, once for the same arguments, and returns its folder."""
    made: dict[tuple[str, ...], Path] = {}

    def folder(*arguments: str) -> Path:
        if arguments not in made:
            out = tmp_path_factory.mktemp("page") / "out"
            done = quietly(*arguments, "--html", "-o", out)
            assert done.code == 0, done.err
            assert "report.html" in done.err
            made[arguments] = out
        return made[arguments]

    return folder


@pytest.fixture
def page(browser: Driver, pages: Callable[..., Path]) -> Driver:
    """The page of the shipped report, just opened."""
    return opened(browser, pages("analyze", str(RUN)))


def resize(driver: Driver, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def opened(driver: Driver, folder: Path, ready: str = f"return ({TIMELINE})?.draws > 0") -> Driver:
    """The page of a folder, when it is ready (its first timeline is drawn), with empty logs before."""
    driver.get("about:blank")
    for name in ("browser", "performance"):
        driver.get_log(name)
    driver.get((folder / "report.html").as_uri())
    until(lambda: driver.execute_script(ready))
    return driver


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def found(driver: Driver, selector: str) -> list[Any]:
    return list(driver.find_elements("css selector", selector))


def shown(driver: Driver, table: str) -> list[str]:
    """The first cells of the rows of a table that can be seen."""
    return driver.execute_script(SHOWN, table)


def view(driver: Driver) -> tuple[float, float]:
    seen = driver.execute_script(f"return [({TIMELINE}).view.from, ({TIMELINE}).view.to]")
    return seen[0], seen[1]


def all_shown(driver: Driver) -> tuple[float, float]:
    """What the timeline shows after the button for all of it."""
    driver.execute_script(f"({TIMELINE}).show(0, ({TIMELINE}).length)")
    return view(driver)


def picture(driver: Driver, name: str, width: int, height: int) -> np.ndarray[Any, Any]:
    """What is on the screen at that size; kept where `NSYSPROF_SCREENSHOTS` says."""
    from io import BytesIO

    from matplotlib.image import imread

    resize(driver, width, height)
    time.sleep(0.5)
    png = base64.b64decode(driver.get_screenshot_as_base64())
    resize(driver, WIDTH, HEIGHT)
    if kept := os.environ.get("NSYSPROF_SCREENSHOTS"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        Path(kept, f"{name}.png").write_bytes(png)
    return imread(BytesIO(png))


def requests(driver: Driver) -> list[str]:
    """The addresses asked for since the page was opened."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", str(RUN)),
        ("analyze", str(RUN), "--no-charts"),
        ("compare", str(RUN), "--base", "RUN::math::*", "--new", "RUN::flash::*"),
        ("why", str(ROOT / "traces" / "block.sqlite")),
    ],
    ids=["analyze", "no charts", "compare", "why"],
)
def test_a_page_opens_in_silence(arguments: tuple[str, ...], browser: Driver, pages: Callable[..., Path]) -> None:
    """Nothing is said on the console, and nothing but the file itself and what is in it is asked for."""
    folder = pages(*arguments)
    opened(browser, folder)
    time.sleep(0.3)
    assert browser.get_log("browser") == []
    asked = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert asked == [(folder / "report.html").as_uri()]
    assert all(image.get_property("naturalWidth") > 0 for image in found(browser, "img"))


def test_the_numbers_shown_are_those_of_the_document(page: Driver, pages: Callable[..., Path]) -> None:
    """Totals, ledger and range tree in the browser equal analysis.json."""
    read = json.loads((pages("analyze", str(RUN), "--spreadsheet-safe") / "analysis.json").read_text())
    totals = dict(page.execute_script(NUMBERS, "[data-key]"))
    assert totals
    assert all(value == read["totals"][key] for key, value in totals.items())
    cells = [value for _, value in page.execute_script(NUMBERS, "#t-ledger tbody td")]
    assert cells[:-3] == [row[key] for row in read["ledger"] for key in ("ops", "sum_ns", "share")]
    busy: dict[str, int] = {}
    for row in read["ranges"]:
        busy[row["merged_path"]] = busy.get(row["merged_path"], 0) + row["busy_ns"]
    assert {path: value for path, _, _, value in page.execute_script(RANGES)} == busy


def test_search_filters_both_tables(page: Driver) -> None:
    """What is typed leaves the rows with these words, in the tree with the ranges around them."""
    ranges, ops = found(page, "[data-search]")
    before = len(shown(page, "#t-ops"))
    ranges.send_keys("run::flash iter")
    assert shown(page, "#t-ranges") == [
        *("RUN::flash::S1024", "iter*", "RUN::flash::S2048", "iter*", "RUN::flash::S4096", "iter*")
    ]
    ops.send_keys("gemm run::math::s4096")
    rows = shown(page, "#t-ops")
    assert 0 < len(rows) < before
    assert all("gemm" in row.lower() for row in rows)
    ops.clear()
    ops.send_keys("safe-softmax guard")  # a cause: no name and no family has it
    assert 0 < len(shown(page, "#t-ops")) < before
    ops.clear()
    ops.send_keys("no such thing")
    assert shown(page, "#t-ops") == []
    assert found(page, "[data-for=t-ops] .count")[0].text.startswith("0 of")


def test_the_search_finds_what_is_shortened(page: Driver) -> None:
    """A kernel is found by any part of its full name, which its row does not show."""
    texts = "return [...document.querySelectorAll(arguments[0])].map(each => each.textContent.toLowerCase())"
    full, rows = page.execute_script(texts, "#op-names li"), page.execute_script(texts, "#t-ops tbody tr")
    name, word = next(
        (name, word) for name in full for word in re.findall(r"\w{6,}", name) if not any(word in row for row in rows)
    )
    found(page, "[data-search]")[1].send_keys(word)
    left = "return [...document.querySelectorAll('#t-ops tbody tr')].filter(r => !r.hidden).map(r => +r.dataset.n)"
    numbers = page.execute_script(left)
    assert 0 < len(numbers) < len(rows)
    assert all(word in full[number] for number in numbers)
    assert name in {full[number] for number in numbers}


def test_heads_sort_and_the_tree_stays_a_tree(page: Driver) -> None:
    """A click sorts by the exact numbers, another one the other way round; inner ranges stay below their parents."""
    page.execute_script("document.querySelector('[data-expand]').click()")
    heads = found(page, "#t-ranges thead button")

    def outer() -> list[int]:
        return [value for _, _, parent, value in page.execute_script(RANGES) if parent == "-1"]

    heads[0].click()  # another test may have sorted by the number
    heads[6].click()
    assert outer() == sorted(outer(), reverse=True)
    heads[6].click()
    assert outer() == sorted(outer())
    assert found(page, "#t-ranges thead th[aria-sort]")[0].get_attribute("aria-sort") == "ascending"
    around = {"-1"}
    for _, number, parent, _ in page.execute_script(RANGES):
        assert parent in around
        around.add(number)
    name = found(page, "#t-ops thead button")[0]
    name.click()
    names = shown(page, "#t-ops")
    assert names[0].lower() < names[len(names) // 2].lower() < names[-1].lower()


def test_the_tree_folds_by_mouse_and_keys(page: Driver) -> None:
    """All opens and closes it, a triangle one range, and arrow keys too."""
    from selenium.webdriver.common.keys import Keys

    everything = len(found(page, "#t-ranges tbody tr"))
    outer = shown(page, "#t-ranges")
    assert len(outer) < everything
    found(page, "[data-expand]")[0].click()
    assert len(shown(page, "#t-ranges")) == everything
    found(page, "[data-collapse]")[0].click()
    assert shown(page, "#t-ranges") == outer
    first = found(page, "#t-ranges tbody tr")[0]
    page.execute_script("arguments[0].focus()", first)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert len(shown(page, "#t-ranges")) > len(outer)
    page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert shown(page, "#t-ranges") == outer
    found(page, "#t-ranges .fold")[0].click()
    assert len(shown(page, "#t-ranges")) > len(outer)


def test_a_chosen_range_shows_its_ops_and_its_time(page: Driver) -> None:
    """A click on a range leaves its ops in the other table and moves the timeline there; a button undoes it."""
    whole = view(page)
    row = next(r for r in found(page, "#t-ranges tbody tr") if r.get_attribute("data-path") == "RUN::flash::S4096")
    page.execute_script("arguments[0].cells[0].click()", row)
    until(lambda: view(page) != whole)
    assert all("flash" in name for name in shown(page, "#t-ops"))
    start, end = (int(row.get_attribute(f"data-{name}")) for name in ("start", "end"))
    low, high = view(page)
    origin = page.execute_script(f"return ({TIMELINE}).head.origin")
    assert low < start - origin
    assert end - origin < high
    found(page, "[data-reset]")[0].click()
    until(lambda: view(page) == whole)
    assert len(shown(page, "#t-ops")) > 100


def test_rows_are_copied_and_saved(page: Driver) -> None:
    """The buttons of a table give the rows that can be seen, names in full and numbers as they are."""
    page.execute_script("addEventListener('copy', event => window.copied = event.clipboardData.getData('text/plain'))")
    search = found(page, "[data-for='t-ops'] [data-search]")[0]
    search.send_keys("softmax flash")
    found(page, "[data-for='t-ops'] button[title^='Copy']")[0].click()
    assert page.execute_script("return window.copied").count("\n") == len(shown(page, "#t-ops"))
    search.clear()
    search.send_keys("softmax math::s4096")
    found(page, "[data-for='t-ops'] button[title^='Copy']")[0].click()
    head, *rows = page.execute_script("return window.copied").split("\n")
    assert head.split("\t")[:2] == ["GPU op", "family"]
    assert len(rows) == len(shown(page, "#t-ops")) > 0
    sums = page.execute_script(
        "return [...document.querySelectorAll('#t-ops tbody tr')].filter(r => !r.hidden).map(r => r.cells[5].dataset.v)"
    )
    assert [row.split("\t")[5] for row in rows] == sums
    assert all(len(row.split("\t")[0]) > 60 for row in rows)


def test_the_address_keeps_what_is_looked_at(browser: Driver, pages: Callable[..., Path]) -> None:
    """Zoom, chosen range and searches stand in the address, and come back with it."""
    folder = pages("analyze", str(RUN))
    opened(browser, folder)
    assert browser.execute_script("return location.hash") == ""
    found(browser, "[data-for='t-ranges'] [data-search]")[0].send_keys("flash")
    row = next(r for r in found(browser, "#t-ranges tbody tr") if r.get_attribute("data-path") == "RUN::flash::S4096")
    browser.execute_script("arguments[0].cells[0].click()", row)
    browser.execute_script("arguments[0].click()", found(browser, ".controls button")[0])
    before, ops, ranges = view(browser), shown(browser, "#t-ops"), shown(browser, "#t-ranges")
    until(lambda: "range=" in browser.execute_script("return location.hash"))
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    until(lambda: browser.execute_script(f"return ({TIMELINE})?.draws > 0"))
    assert view(browser) == pytest.approx(before, abs=1)
    assert shown(browser, "#t-ops") == ops
    assert shown(browser, "#t-ranges") == ranges


def test_the_first_view_is_of_steady_work(page: Driver) -> None:
    """What is shown first are a few instances of the range with most work, not the start of the program."""
    low, high = view(page)
    whole = page.execute_script(f"return ({TIMELINE}).length")
    assert high - low < whole / 20
    names = page.execute_script(f"""const t = {TIMELINE};
        return t.rows.filter(row => row.kind === 'ranges').flatMap(row => {{
          const [first, last] = t.visible(row);
          return [...Array(last - first).keys()].map(i => t.title(row, first + i));
        }})""")
    assert {"RUN::math::S4096", "iter31"} <= set(names)


def test_the_timeline_is_searched(page: Driver) -> None:
    """Words find marks of every lane, and Enter goes from one to the next in the order of time."""
    search = found(page, ".controls input")[0]
    search.send_keys("RUN::flash")
    until(lambda: "found" in found(page, ".controls .count")[0].text)
    times = []
    for _ in range(3):
        search.send_keys("\n")
        times.append(page.execute_script(f"return ({TIMELINE}).current.row.start[({TIMELINE}).current.at]"))
    assert times == sorted(times)
    assert "RUN::flash" in found(page, ".tip b")[0].text
    search.clear()
    search.send_keys("cudaDeviceSynchronize")
    search.send_keys("\n")
    assert "waits for the GPU" in found(page, ".tip")[0].text


def test_empty_lanes_fold(page: Driver) -> None:
    """A lane that has nothing in the view is a line once that has settled, and as high as ever when it has."""
    heights = f"return ({TIMELINE}).rows.map(row => row.height)"
    until(lambda: 4 in page.execute_script(heights))
    all_shown(page)
    until(lambda: 4 not in page.execute_script(heights))


def test_the_timeline_zooms_and_pans(page: Driver) -> None:
    """By buttons, keys, wheel and dragging; the wheel moves the page as long as the timeline is not in use."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.keys import Keys

    whole = all_shown(page)
    size = whole[1] - whole[0]
    found(page, ".controls button")[0].click()
    until(lambda: view(page)[1] - view(page)[0] == pytest.approx(size / 2))
    canvas = found(page, "canvas.lanes")[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    page.execute_script("document.activeElement.blur()")
    scrolled = page.execute_script("return scrollY")
    ActionChains(page).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, 60).perform()
    until(lambda: page.execute_script("return scrollY") > scrolled)
    assert view(page)[1] - view(page)[0] == pytest.approx(size / 2)
    page.execute_script("arguments[0].focus()", canvas)
    ActionChains(page).scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -300).perform()
    until(lambda: view(page)[1] - view(page)[0] < size / 2.5)
    for keys, changes in (("+", True), (Keys.ARROW_RIGHT, True), (Keys.HOME, True)):
        before = view(page)
        page.switch_to.active_element.send_keys(keys)
        assert (view(page) != before) == changes
    assert view(page) == whole
    page.switch_to.active_element.send_keys("++")
    before = view(page)
    ActionChains(page).drag_and_drop_by_offset(canvas, -120, 0).perform()
    assert view(page)[0] > before[0]
    assert view(page)[1] - view(page)[0] == pytest.approx(before[1] - before[0])


@pytest.mark.parametrize("name", ["short before long", "run", "block", "two processes", "rank 0", "tiled"])
def test_what_is_two_pixels_wide_is_drawn_at_every_zoom(
    name: str, browser: Driver, pages: Callable[..., Path], tmp_path: Path
) -> None:
    """No range, launch or op that is wide enough to be seen goes missing behind a short one next to it."""
    reports = {
        "run": RUN,
        "block": ROOT / "traces" / "block.sqlite",
        "two processes": ROOT / "traces" / "two-processes.sqlite",
        "rank 0": TWO / "rank_0.sqlite",
        "tiled": ROOT / "analysis" / "tiled-attention" / "tiled.sqlite",
    }
    if name not in reports:
        steps: list[Items] = []
        for at in range(0, 2_000_000_000, 400_000_000):
            steps += [
                Range("zero_grad", at, at + 900),
                Range("forward", at + 1_000, at + 399_000_000),
                *launch_kernel("k", (at + 2_000, at + 3_000), (at + 5_000, at + 90_000), id=at // 1000 + 1),
            ]
        reports[name] = write(tmp_path / "short.sqlite", steps)
    opened(browser, pages("analyze", str(reports[name]), "--no-charts"))
    zooms, looked, missing, some = browser.execute_script(DRAWN_AT_EVERY_ZOOM)
    assert zooms > 20
    assert looked > 50
    assert not missing, some


def test_hovering_over_an_op_tells_its_facts(page: Driver) -> None:
    """The name, the family, how long, in which range and when launched; keys lead to the next one and are told too."""
    from selenium.webdriver.common.action_chains import ActionChains

    found(page, ".controls button")[5].click()  # close up: one instance
    time.sleep(0.2)
    x, y = page.execute_script(LONG_OP)
    canvas = found(page, "canvas.lanes")[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    box = canvas.size
    ActionChains(page).move_to_element_with_offset(
        canvas, int(x - box["width"] / 2), int(y - box["height"] / 2)
    ).perform()
    tip = found(page, ".tip")[0]
    until(tip.is_displayed)
    for fact in ("family: ", "time: ", "stream: GPU 0", "range: RUN::math::S4096/iter", "launched: "):
        assert fact in tip.text
    page.execute_script("arguments[0].focus()", canvas)
    before = tip.text
    page.switch_to.active_element.send_keys("n")
    assert tip.text != before
    page.switch_to.active_element.send_keys("\ue00c")  # escape
    assert not tip.is_displayed()


def test_the_overview_selects_a_stretch(page: Driver) -> None:
    """Dragging over the busy curve shows that part below."""
    from selenium.webdriver.common.action_chains import ActionChains

    whole = all_shown(page)
    over = found(page, ".u-over")[0]
    actions = ActionChains(page).move_to_element_with_offset(over, -100, 0).click_and_hold()
    actions.move_by_offset(200, 0).release().perform()
    until(lambda: view(page) != whole)
    share = (view(page)[1] - view(page)[0]) / (whole[1] - whole[0])
    assert share == pytest.approx(200 / over.size["width"], rel=0.05)


def test_a_hundred_thousand_ops_stay_smooth(
    browser: Driver,
    pages: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[[str, object], None],
) -> None:
    """Zooming and panning through 100,000 kernels, a frame takes a few times what it does for 7,655."""
    report = tmp_path_factory.mktemp("big") / "big.sqlite"
    command = [sys.executable, str(ROOT / "benchmarks" / "make_big_trace.py"), "--kernels", "100000"]
    options = ["--processes", "2", "--template", str(RUN), "--out", str(report)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    browser.set_script_timeout(120)
    opened(browser, pages("analyze", str(RUN)))
    few, _, _ = browser.execute_async_script(TRAVEL)
    opened(browser, pages("analyze", str(report)))
    frames, boxes, marks = browser.execute_async_script(TRAVEL)
    record_property("median_frame_ms", statistics.median(frames))
    assert marks > 100_000
    assert boxes < marks / 3
    assert statistics.median(frames) < 5 * max(statistics.median(few), 2)
    assert browser.get_log("browser") == []


def test_hostile_names_do_nothing(
    browser: Driver, pages: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A range that is called like a script is shown as it is called, in the tree, the tips and the timeline."""
    names = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "\" onmouseover='alert(1)'")
    items: list[Items] = []
    for number, name in enumerate(names):
        at = 1000 * number
        items += [
            Range(name, at, at + 900),
            *launch_kernel(f"k {name}", (at + 10, at + 20), (at + 30, at + 200), id=number + 1),
        ]
    report = write(tmp_path_factory.mktemp("hostile") / "report.sqlite", items, duration=10_000)
    opened(browser, pages("analyze", str(report)))
    assert shown(browser, "#t-ranges") == list(names)
    browser.execute_script(f"{TIMELINE}.goTo({TIMELINE}.rows.find(row => row.kind === 'ranges'), 0)")
    assert found(browser, ".tip b")[0].text == names[0]
    assert found(browser, "main img[src=x]") == []
    assert found(browser, "[onmouseover]") == []
    assert browser.get_log("browser") == []


def test_a_replayed_op_tells_where_it_was_captured(
    browser: Driver, pages: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a CUDA graph replays shows both ranges: the one that launched the graph, and the one that captured it."""
    items: list[Items] = [
        Range("CAPTURE", 0, 100),
        Range("layer0", 10, 90),
        GraphNode(1, 50),
        Range("step", 1_000, 9_000),
        *launch_kernel("gemm", (1_100, 1_200), (2_000, 8_000), id=1, graph_node=1),
    ]
    report = write(tmp_path_factory.mktemp("captured") / "report.sqlite", items, duration=10_000)
    opened(browser, pages("analyze", str(report)))
    browser.execute_script(f"{TIMELINE}.goTo({TIMELINE}.rows.find(row => row.kind === 'ops'), 0)")
    text = found(browser, ".tip")[0].text
    assert "range: step" in text
    assert "captured in: CAPTURE/layer0" in text
    assert browser.get_log("browser") == []


def test_without_scripts_everything_static_is_there(browser: Driver, pages: Callable[..., Path]) -> None:
    """Where no script runs, all rows of all tables can be seen, and no control that would do nothing."""
    folder = pages("analyze", str(RUN))
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get("about:blank")
        browser.get((folder / "report.html").as_uri())
        rows = found(browser, "#t-ranges tbody tr")
        assert len(rows) > 90
        assert all(row.is_displayed() for row in rows[:: len(rows) // 8])
        assert not any(each.is_displayed() for each in found(browser, ".tools, .fold"))
        assert "needs JavaScript" in found(browser, "figure.timeline")[0].text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_page_prints(page: Driver) -> None:
    """On paper there are no controls, no row is cut off by a scrolling box, and the ops end after the longest."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not any(each.is_displayed() for each in found(page, "nav, .tools, .controls, .hint"))
        box = "const b = document.querySelector('#ranges .wide'); return b.scrollHeight <= b.clientHeight + 1"
        assert page.execute_script(box)
        assert len(shown(page, "#t-ops")) == 60
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    printed = page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 100_000


def test_a_comparison_shows_a_call_of_either_side(browser: Driver, pages: Callable[..., Path]) -> None:
    """Below the waterfall each pair has its ledger, equal to gap.json, and both calls on one axis."""
    folder = pages("compare", str(RUN), "--base", "RUN::math::*", "--new", "RUN::flash::*")
    opened(browser, folder)
    read = json.loads((folder / "gap.json").read_text())
    ledgers = browser.execute_script(LEDGERS)
    known = [[gap[key] for gap in pair["gaps"] for key in ("base_ns", "new_ns", "delta_ns")] for pair in read["pairs"]]
    assert sorted(ledgers) == sorted(known)
    assert [each.get_attribute("open") for each in found(browser, "details.pair")] == ["true", None, None]
    groups = browser.execute_script(f"return [...new Set({TIMELINE}.rows.map(row => row.group))]")
    assert [group.split(" · ")[0] for group in groups] == ["math", "flash"]
    found(browser, "details.pair summary")[1].click()
    until(lambda: browser.execute_script("return document.querySelectorAll('[data-timeline]')[1].timeline.draws > 0"))


def test_the_critical_path_is_drawn_and_told(browser: Driver, pages: Callable[..., Path]) -> None:
    """Every piece that is wide enough has its colour, also those below it, and hovering names culprit and cause."""
    opened(browser, pages("why", str(ROOT / "traces" / "block.sqlite")))
    zooms, looked, missing, some = browser.execute_script(DRAWN_AT_EVERY_ZOOM)
    assert zooms > 20
    assert looked > 50
    assert not missing, some
    row = f"{TIMELINE}.rows[0]"
    longest = f"""const row = {row}; let best = 0;
        for (let i = 0; i < row.marks; i++)
          if (row.data[0][i] && row.end[i] - row.start[i] > row.end[best] - row.start[best]) best = i;
        return best"""
    at = browser.execute_script(longest)
    browser.execute_script(f"{TIMELINE}.show(0, {TIMELINE}.length); {TIMELINE}.goTo({row}, {at})")
    until(lambda: [each for each in found(browser, ".tip") if each.is_displayed()])
    [tip] = found(browser, ".tip")
    assert "cause: code" in tip.text
    assert "code in" in tip.text
    colour = f"""const t = {TIMELINE}, row = {row}, at = {at}, pen = t.canvas.getContext('2d');
        const x = Math.round((t.x(row.start[at]) + t.x(row.end[at])) / 2 * t.ratio);
        t.current = null;
        t.draw();
        const of = (y) => [...pen.getImageData(x, Math.round(y * t.ratio), 1, 1).data];
        return [of(row.y + row.height - 2), of(t.height - 2), t.head.waits[row.data[0][at]][1]]"""
    piece, below, wanted = browser.execute_script(colour)
    assert "#" + "".join(f"{part:02x}" for part in piece[:3]) == wanted
    assert below[3] > 0
    legend = browser.execute_script("return document.querySelector('.legend').innerText")
    assert "code" in legend


def test_the_page_of_a_fleet_is_sorted_and_searched(browser: Driver, pages: Callable[..., Path]) -> None:
    """Ranks sort by exact numbers and are found by their report; nothing is said on the console or asked for."""
    pytest.importorskip("distributed", reason="needs the fleet extra")
    folder = pages("fleet", str(TWO), "--workers", "1")
    opened(browser, folder, "return document.documentElement.classList.contains('ready')")
    assert shown(browser, "#t-ranks") == ["0", "1"]
    [own] = [head for head in found(browser, "#t-ranks thead button") if head.text == "own each"]
    own.click()
    assert shown(browser, "#t-ranks") == ["0", "1"]
    own.click()
    assert shown(browser, "#t-ranks") == ["1", "0"]
    found(browser, "[data-for=t-ranks] input")[0].send_keys("rank_1.sqlite")
    assert shown(browser, "#t-ranks") == ["1"]
    found(browser, "[data-for=t-ranges] input")[0].send_keys("backward")
    assert shown(browser, "#t-ranges") == ["step*/backward"]
    assert browser.get_log("browser") == []
    asked = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert asked == [(folder / "report.html").as_uri()]
    assert [image.get_property("naturalWidth") > 0 for image in found(browser, "img")] == [True, True]
    assert picture(browser, "fleet", WIDTH, 2600).shape[0] == 2600


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [("desktop", 1400, 1900, "light"), ("narrow", 600, 1900, "light"), ("dark", 1400, 1900, "dark")],
)
def test_pictures_to_be_looked_at(name: str, width: int, height: int, scheme: str, page: Driver) -> None:
    """The page fits its width, is not blank, and its background is that of the colour scheme."""
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    try:
        pixels = picture(page, f"analyze-{name}", width, height)
        resize(page, width, height)
        wide = page.execute_script("return document.documentElement.scrollWidth")
    finally:
        resize(page, WIDTH, HEIGHT)
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert wide == width
    assert pixels.shape[:2] == (height, width)
    assert (pixels[2, 2, :3].mean() > 0.9) == (scheme == "light")
    colours = np.round(pixels[..., :3] * 31).astype(np.int64) @ [1 << 10, 1 << 5, 1]
    assert np.count_nonzero(np.bincount(colours.ravel())) > 60
