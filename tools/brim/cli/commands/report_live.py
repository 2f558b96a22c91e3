"""``brim report --live``: what running servers do, as a page."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from brim.cli.commands.live_places import places, promised, recorded
from brim.cli.commands.serve import stop_on_signal
from brim.cli.commands.top import last_view
from brim.cli.output import put, put_answer, say
from brim.errors import InputError, MissingTool
from brim.live.history import History, View
from brim.live.look import Looker
from brim.live.places import Places
from brim.live.seen import Objectives, read_recording, write_text
from brim.paths import find_project

PAGE_NAME = "report.html"
MARKDOWN_NAME = "report.md"
RUNNING = "running"
"""In place of an address: the server of this checkout that runs here."""
PICTURE_WIDTH, PICTURE_HEIGHT = 1280, 1450


@dataclass(frozen=True, slots=True)
class Live:
    """What is looked at, how often, and where it is shown."""

    servers: Sequence[str]
    metrics: Sequence[str]
    gateway: str | None
    interval_s: float
    refresh_s: int | None
    duration_s: float | None
    out: Path | None
    picture: Path | None

    @property
    def recording(self) -> Path | None:
        """The recording that is shown in place of servers."""
        return Path(self.servers[0]) if len(self.servers) == 1 and self.servers[0].endswith(".json") else None

    @property
    def folder(self) -> Path:
        """Where the page goes."""
        return self.out or find_project().runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-live"


def report_live(live: Live, *, as_json: bool) -> int:
    """One look, or with ``refresh_s`` a page that is written again and again."""
    faults = []
    if live.duration_s is not None and live.refresh_s is None:
        faults.append("--duration-s without --refresh-s")
    if live.refresh_s is not None and live.recording is not None:
        faults.append("--refresh-s with a recording, which stays as it is")
    if live.refresh_s is not None and (as_json or live.picture is not None):
        faults.append("--refresh-s with --json or --picture, which are of one look")
    if live.recording is not None and (live.metrics or live.gateway):
        faults.append("--metrics or --gateway-admin with a recording, which asks nobody")
    if faults:
        raise InputError("; ".join(faults), hint="`brim report --help` shows what it takes")
    if live.refresh_s is not None:
        return _again_and_again(live, live.refresh_s)
    recording = live.recording
    if recording is not None:
        looks, taken_at = read_recording(recording), ""
    else:
        looks, taken_at = recorded(_places(live), 2, live.interval_s), _now()
    view = last_view(looks)
    files, sections = _write(live.folder, view, looks.objectives, taken_at, None)
    files += draw_page(files[0], live.picture)
    if as_json:
        put_answer("report", {"files": [str(path) for path in files], "sections": sections, **view.as_json()})
    else:
        for path in files:
            put(str(path))
    return 0


def _again_and_again(live: Live, refresh_s: int) -> int:
    folder, objectives = live.folder, promised()
    until_s = None if live.duration_s is None else time.monotonic() + live.duration_s
    history = History(objectives)
    with stop_on_signal(), Looker(_places(live)) as looker:
        history.add(looker.look())
        time.sleep(min(live.interval_s, refresh_s))
        said = False
        while True:
            files, _ = _write(folder, history.add(looker.look()), objectives, _now(), refresh_s)
            if not said:
                put(str(files[0]))
                say(f"it loads itself anew every {refresh_s} s; Ctrl-C ends it")
                said = True
            if until_s is not None and time.monotonic() + refresh_s > until_s:
                break
            time.sleep(refresh_s)
    return 0


def _places(live: Live) -> Callable[[], Places]:
    servers = [] if list(live.servers) == [RUNNING] else live.servers
    return places(servers, live.metrics, live.gateway, None)


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


def _write(
    folder: Path, view: View, objectives: Mapping[str, Objectives], taken_at: str, refresh_s: int | None
) -> tuple[list[Path], list[str]]:
    """The files, the page first, and the ids of its sections."""
    try:
        from brim.report.live import live_report
    except ImportError as error:
        raise no_pictures(error) from error
    from brim.report.markdown import markdown
    from brim.report.page import page

    built = live_report(
        view, objectives, command=shlex.join(["brim", *sys.argv[1:]]), taken_at=taken_at, refresh_s=refresh_s
    )
    files = write_files(folder, {PAGE_NAME: page(built), MARKDOWN_NAME: markdown(built, page=PAGE_NAME)})
    return files, [one.id for one in built.sections]


def no_pictures(error: ImportError) -> MissingTool:
    """What a report needs is not installed."""
    return MissingTool(
        f"no picture can be drawn: {error}", hint="pip install 'brim[report]' brings what the report needs"
    )


def draw_page(page: Path, picture: Path | None) -> list[Path]:
    """The page as a browser shows it, where a picture is asked for.

    Raises:
        MissingTool: there is no browser, and none can be had.
    """
    if picture is None:
        return []
    from brim.report.browser import find_browser, render

    browser = find_browser(find_project().cache_folder(), on_progress=say)
    render(browser, page, picture, width=PICTURE_WIDTH, height=PICTURE_HEIGHT)
    return [picture]


def write_files(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Each file whole or not at all.

    Raises:
        InputError: the folder cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder", hint="--out wants a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
