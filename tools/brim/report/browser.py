"""A page as a picture, by a browser: the one on this machine, or Debian's Chromium, kept in the project's cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from brim.errors import CouldNotTell, MissingTool
from brim.measure import debian
from brim.measure.attempt import AttemptFailed, run_bounded
from brim.measure.made_once import locked

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE, PROGRAM = "chromium", Path("usr/lib/chromium/chromium")
LIBRARIES = (
    *("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"),
    "usr/lib/chromium",
)
PROBE_TIMEOUT_S, RENDER_TIMEOUT_S = 60.0, 120.0
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
"""It shows one file, and asks nobody anything. Without a sandbox: the file is our own, and containers seldom allow one."""
COLORS = 128
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


@dataclass(frozen=True, slots=True)
class Browser:
    """A program of Chromium's kind, and the folders of libraries that it needs beside the system's own."""

    program: Path
    libraries: tuple[Path, ...] = ()

    def command(self, scratch: Path) -> list[str]:
        """How it is started. matplotlib's fonts are its only ones, so that a picture is the same on every machine."""
        fonts = scratch / "fonts.conf"
        variables = [f"HOME={scratch}", f"FONTCONFIG_FILE={fonts}"]
        if self.libraries:
            variables.append(f"LD_LIBRARY_PATH={':'.join(map(str, self.libraries))}")
        if (folder := _font_folder()) is not None:
            fonts.write_text(FONTS.format(fonts=folder, cache=scratch / "fontconfig"), encoding="utf-8")
        else:
            variables.remove(f"FONTCONFIG_FILE={fonts}")
        return ["env", *variables, str(self.program), *QUIET, f"--user-data-dir={scratch / 'profile'}"]


def find_browser(cache: Path, *, on_progress: Callable[[str], None] = lambda _: None) -> Browser:
    """A browser that runs here. It is fetched once; the next call needs no network.

    Args:
        cache: the project's cache folder.
        on_progress: told what is happening.

    Raises:
        MissingTool: none is here, and none can be fetched; says why.
        CouldNotTell: another process is fetching it for too long.
    """
    ready = cache / PACKAGE
    tree = ready / "tree"
    here = [Browser(Path(found)) for name in NAMES if (found := shutil.which(name))]
    for browser in (*here, _in(tree)):
        if _runs(browser):
            return browser
    try:
        ready.mkdir(parents=True, exist_ok=True)
        with locked(ready / "lock", PACKAGE, on_progress):
            if not _runs(_in(tree)):
                _fetch(tree, on_progress)
        _probe(_in(tree))
    except (AttemptFailed, OSError) as failure:
        raise MissingTool(
            f"no browser runs here: {failure}",
            hint="install Chromium (Debian: apt-get install chromium), or put one on PATH",
        ) from failure
    return _in(tree)


def render(browser: Browser, page: Path, picture: Path, *, width: int, height: int) -> None:
    """The top of a page as a PNG, whole or not at all.

    Args:
        browser: that draws it.
        page: an HTML file that needs nothing else.
        picture: the file; an earlier one is replaced.
        width: of the window, in pixels.
        height: of the window; what is below is not in the picture.

    Raises:
        CouldNotTell: it drew nothing.
    """
    with tempfile.TemporaryDirectory(prefix="brim-browser-") as folder:
        scratch = Path(folder)
        drawn = scratch / "page.png"
        shot = [f"--window-size={width},{height}", f"--screenshot={drawn}", page.resolve().as_uri()]
        try:
            run_bounded([*browser.command(scratch), *shot], timeout_s=RENDER_TIMEOUT_S)
            with Image.open(drawn) as image:
                # A page has few colours: this takes a third of the room.
                small = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
        except (AttemptFailed, OSError) as failure:
            raise CouldNotTell(
                f"{browser.program} drew no picture of {page}: {failure}", hint="open the page"
            ) from failure
        beside = picture.with_name(f"{picture.name}.part")
        small.save(beside, format="PNG", optimize=True)
        beside.replace(picture)


def _in(tree: Path) -> Browser:
    return Browser(tree / PROGRAM, tuple(tree / folder for folder in LIBRARIES))


def _probe(browser: Browser) -> None:
    with tempfile.TemporaryDirectory(prefix="brim-browser-") as folder:
        run_bounded([*browser.command(Path(folder)), "--version"], timeout_s=PROBE_TIMEOUT_S)


def _runs(browser: Browser) -> bool:
    if not browser.program.is_file():
        return False
    try:
        _probe(browser)
    except AttemptFailed:
        return False
    return True


def _fetch(tree: Path, on_progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix=".fetching-") as folder:
        scratch = Path(folder)
        apt = debian.updated(debian.distribution(), debian.own_suite(), scratch / "apt", on_progress)
        packages = debian.needed(PACKAGE, apt)
        on_progress(f"fetching {PACKAGE} and {len(packages) - 1} libraries")
        unpacked = debian.unpack(packages, apt, scratch)
        if not (unpacked / PROGRAM).is_file():
            raise AttemptFailed(f"the package {PACKAGE} holds no {PROGRAM}")
        shutil.rmtree(tree, ignore_errors=True)
        unpacked.replace(tree)


def _font_folder() -> Path | None:
    spec = find_spec("matplotlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        fonts = Path(folder) / "mpl-data" / "fonts" / "ttf"
        if fonts.is_dir():
            return fonts
    return None
