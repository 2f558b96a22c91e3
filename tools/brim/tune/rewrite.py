"""Writing a choice into the service file and the generated configurations: as differences first, then as files."""

from __future__ import annotations

import difflib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from brim.config.files import generated, write_whole
from brim.errors import InputError
from brim.paths import Project
from brim.service.load import check_text
from brim.service.schema import Batching, Instances, Service
from brim.tune.derive import Derived
from brim.tune.setting import Setting, with_setting
from brim.units import us_to_ms

LONG_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a choice changes: path -> new text, and all of it as a unified difference."""

    texts: dict[Path, str]
    diff: str

    def write(self) -> list[Path]:
        """Write each file whole or not at all; those that were written."""
        for path, text in self.texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        return list(self.texts)


def rewrite(project: Project, service: Service, setting: Setting, gateway: Derived | None = None) -> Rewrite:
    """What has to change for a service to have a setting; nothing is written.

    Args:
        project: where its files are.
        service: as it is.
        setting: what it shall have.
        gateway: what the gateway needs; None leaves what is said of it.

    Raises:
        InputError: the service file cannot be changed by itself: it says something else afterwards.
    """
    path = project.services / f"{service.name}.yaml"
    before = path.read_text(encoding="utf-8")
    after = service_text(before, service, setting, gateway)
    changed, findings = check_text(after, path.name)
    if changed != _wanted(service, setting, gateway):
        raise InputError(
            f"{path}: batching, instances and runtime cannot be rewritten: {'; '.join(one.message for one in findings) or 'aliases?'}",
            hint=f"write the setting into it by hand: {setting}",
        )
    return difference(project, {path: after, **generated(project.model_repository, changed)})


def difference(project: Project, texts: dict[Path, str]) -> Rewrite:
    """What is new of these texts."""
    new = {file: text for file, text in texts.items() if not file.is_file() or file.read_bytes() != text.encode()}
    return Rewrite(new, "".join(_diff(file, text, project.root) for file, text in new.items()))


def _diff(path: Path, text: str, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    present = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
    lines = difflib.unified_diff(
        present.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _wanted(service: Service, setting: Setting, gateway: Derived | None) -> Service:
    wanted = with_setting(service, setting)
    if gateway is None:
        return wanted
    kept = {"in_flight_bound": gateway.in_flight_bound, "batch_time": gateway.batch_time}
    return wanted.model_copy(update={"batching": wanted.batching.model_copy(update=kept)})


def service_text(text: str, service: Service, setting: Setting, gateway: Derived | None = None) -> str:
    """The service file with the setting in it. Comments, order and everything else stay; a key that already says so, or is
    absent and means so, is left alone.

    Args:
        text: the file.
        service: what it says.
        setting: what it shall say.
        gateway: what it shall say for the gateway; None leaves that.
    """
    wanted = _wanted(service, setting, gateway)
    if wanted == service:
        return text
    yaml = round_trip()
    document = yaml.load(text)
    _set_batching(block_of(document, "batching"), service, wanted, gateway)
    if wanted.instances != service.instances:
        _set_instances(document, wanted.instances[0])
    if wanted.runtime != service.runtime:
        _set_runtime(block_of(document, "runtime"), service, wanted)
    for key in ("batching", "runtime"):
        if key in document and not document[key] and key not in service.model_fields_set:
            del document[key]
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


def round_trip() -> YAML:
    """Reads and writes service files so that comments, quotes and order stay."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = LONG_LINE
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def block_of(document: CommentedMap, key: str) -> CommentedMap:
    """A block of the file; an empty one is put at the end where there is none."""
    if not isinstance(document.get(key), CommentedMap):
        document[key] = CommentedMap()
    block: CommentedMap = document[key]
    return block


def _set_batching(block: CommentedMap, service: Service, wanted: Service, gateway: Derived | None) -> None:
    before, after = service.batching, wanted.batching
    _set(block, "preferred", before.preferred, after.preferred, _flow(after.preferred))
    delay_ms = after.max_queue_delay_ms
    _set(block, "max_queue_delay_ms", before.max_queue_delay_ms, delay_ms, _short(delay_ms))
    for key in (
        "priority_levels",
        "default_priority_level",
        "default_queue_policy",
        "priority_queue_policy",
    ):
        if getattr(after, key) == getattr(Batching(), key) != getattr(before, key):
            block.pop(key, None)
    if gateway is None:
        return
    if before.in_flight_bound != after.in_flight_bound:
        block["in_flight_bound"] = after.in_flight_bound
        full_ms = us_to_ms(gateway.full_batch_us)
        _say(
            block,
            "in_flight_bound",
            f"by brim tune: so many are answered within the SLO; a full batch takes {full_ms:.4g} ms",
        )
    if before.batch_time != after.batch_time:
        block["batch_time"] = CommentedMap(
            {key: _short(value) for key, value in gateway.batch_time.model_dump().items()}
        )
        _say(block, "batch_time", "by brim tune, as measured in service")


def _set_runtime(block: CommentedMap, service: Service, wanted: Service) -> None:
    _set(block, "threads", service.runtime.threads, wanted.runtime.threads, wanted.runtime.threads)
    cost = wanted.runtime.padding
    if cost is not None and cost != service.runtime.padding:
        block["padding"] = CommentedMap(
            {key: _short(value) for key, value in cost.model_dump(exclude_defaults=True).items()}
        )


def _say(block: CommentedMap, key: str, text: str) -> None:
    """A comment behind a key, unless somebody has written one there, or all of the block is on one line."""
    if not block.fa.flow_style() and key not in block.ca.items:
        block.yaml_add_eol_comment(text, key)


def _set(block: CommentedMap, key: str, present: Any, wanted: Any, written: Any) -> None:
    if present != wanted:
        block[key] = written


def _flow(sizes: tuple[int, ...]) -> CommentedSeq:
    listed = CommentedSeq(sizes)
    listed.fa.set_flow_style()
    return listed


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _set_instances(document: CommentedMap, group: Instances) -> None:
    """The count of the first group, without the other groups."""
    listed = document.get("instances")
    if isinstance(listed, CommentedSeq) and listed:
        listed[0]["count"] = group.count
        del listed[1:]
        return
    entry = CommentedMap(count=group.count)
    entry.fa.set_flow_style()
    document["instances"] = CommentedSeq([entry])
