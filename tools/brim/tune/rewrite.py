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
from brim.tune.setting import Setting, setting_of, with_setting
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


def rewrite(project: Project, service: Service, setting: Setting) -> Rewrite:
    """What has to change for a service to have a setting; nothing is written.

    Raises:
        InputError: the service file cannot be changed by itself: it says something else afterwards.
    """
    path = project.services / f"{service.name}.yaml"
    before = path.read_text(encoding="utf-8")
    after = service_text(before, service, setting)
    changed, findings = check_text(after, path.name)
    if changed != with_setting(service, setting):
        raise InputError(
            f"{path}: batching and instances cannot be rewritten: {'; '.join(one.message for one in findings) or 'aliases?'}",
            hint=f"write the setting into it by hand: {setting}",
        )
    texts = {path: after, **generated(project.model_repository, changed)}
    new = {file: text for file, text in texts.items() if not file.is_file() or file.read_bytes() != text.encode()}
    return Rewrite(new, "".join(_diff(file, text, project.root) for file, text in new.items()))


def _diff(path: Path, text: str, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    present = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else ""
    lines = difflib.unified_diff(
        present.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def service_text(text: str, service: Service, setting: Setting) -> str:
    """The service file with the setting in it. Comments, order and everything else stay; a key that already says so, or is
    absent and means so, is left alone.

    Args:
        text: the file.
        service: what it says.
        setting: what it shall say.
    """
    if setting_of(service) == setting and with_setting(service, setting) == service:
        return text
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = LONG_LINE
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    wanted = with_setting(service, setting)
    batching = document.get("batching")
    if not isinstance(batching, CommentedMap):
        batching = CommentedMap()
    _set(batching, "preferred", service.batching.preferred, setting.preferred, _flow(setting.preferred))
    delay_ms = us_to_ms(setting.delay_us)
    _set(batching, "max_queue_delay_ms", service.batching.max_queue_delay_ms, delay_ms, _short(delay_ms))
    for key in (
        "preserve_ordering",
        "priority_levels",
        "default_priority_level",
        "default_queue_policy",
        "priority_queue_policy",
    ):
        if getattr(wanted.batching, key) == getattr(Batching(), key) != getattr(service.batching, key):
            batching.pop(key, None)
    if batching and "batching" not in document:
        document["batching"] = batching
    if wanted.instances != service.instances:
        _set_instances(document, wanted.instances[0])
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


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
