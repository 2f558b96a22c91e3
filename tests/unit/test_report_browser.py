"""A page as a picture. Drawn by a real browser where there is one; that none can be had is told apart from a page that is not drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from brim.errors import CouldNotTell, MissingTool
from brim.measure import debian
from brim.measure.attempt import AttemptFailed, Output
from brim.paths import Project
from brim.report import browser
from brim.report.browser import Browser, find_browser, render

PAGE = "<!doctype html><title>x</title><body style='margin:0;background:#00ff00'><h1 style='margin:60px'>brim</h1>"


def found(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Browser:
    """The browser on this machine, or the one that ``make pictures`` has fetched; nothing is fetched here."""

    def fetch(tree: Path, on_progress: object) -> None:
        raise AttemptFailed("a test fetches no browser")

    monkeypatch.setattr(browser, "_fetch", fetch)
    try:
        return find_browser(Project(checkout).cache_folder())
    except MissingTool:
        pytest.skip("no browser is here, and `make pictures` has fetched none")


def test_a_page_is_drawn(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    render(found(checkout, monkeypatch), tmp_path / "page.html", tmp_path / "page.png", width=320, height=200)
    with Image.open(tmp_path / "page.png") as image:
        assert image.size == (320, 200)
        drawn = image.convert("RGB")
    colors = drawn.getcolors(320 * 200) or []
    assert drawn.getpixel((2, 2)) == (0, 255, 0) and (0, 0, 0) in {color for _, color in colors}, "ground and letters"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "page.png"]


def test_what_is_no_browser_draws_nothing(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    for program, words in (("/bin/true", "No such file"), ("/bin/false", "status 1"), ("/no/such", "status 127")):
        with pytest.raises(CouldNotTell, match=words):
            render(Browser(Path(program)), tmp_path / "page.html", tmp_path / "page.png", width=32, height=32)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_without_a_browser_and_without_packages_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "NAMES", ("no-such-browser",))

    def nothing(*_: object) -> str:
        raise AttemptFailed("this system has no apt-get to fetch packages with")

    monkeypatch.setattr(debian, "distribution", nothing)
    with pytest.raises(MissingTool, match=r"no browser runs here: this system has no apt-get") as caught:
        find_browser(tmp_path)
    assert "apt-get install chromium" in caught.value.hint


def test_what_a_package_needs_is_read_from_apts_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Reading...\nInst libb (2 Debian [amd64])\nInst liba (1 Debian [amd64]) []\nInst net (3 Debian [amd64])\nConf liba (1)\n"
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> Output:
        asked.append(command)
        return Output(said, "")

    monkeypatch.setattr(debian, "run_bounded", run)
    assert debian.needed("net", ["apt-get", "-o", "x=y"]) == ["liba", "libb", "net"]
    assert "--simulate" in asked[0] and "--no-install-recommends" in asked[0], "nothing is installed"
    assert debian.needed("here", ["apt-get"]) == ["here", "liba", "libb", "net"]


def test_a_browser_asks_nobody_and_keeps_nothing(tmp_path: Path) -> None:
    command = Browser(Path("/x/chromium"), (Path("/x/lib"),)).command(tmp_path)
    assert {"--disable-background-networking", "--disable-component-update", "--disable-sync", "--headless"} <= set(
        command
    )
    assert f"--user-data-dir={tmp_path / 'profile'}" in command and "LD_LIBRARY_PATH=/x/lib" in command
    assert f"HOME={tmp_path}" in command and (tmp_path / "fonts.conf").is_file()
