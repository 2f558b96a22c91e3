"""Writing a choice into the service file of a language model and the generated configurations."""

from __future__ import annotations

import io

from brim.config.files import generated
from brim.errors import InputError
from brim.paths import Project
from brim.service.load import check_text
from brim.service.schema import Service
from brim.tune.rewrite import Rewrite, block_of, difference, round_trip
from brim.tune.text.setting import Setting, setting_of, with_setting


def rewrite(project: Project, service: Service, setting: Setting) -> Rewrite:
    """What has to change for a service to have a setting; nothing is written.

    Raises:
        InputError: the service file cannot be changed by itself: it says something else afterwards.
    """
    path = project.services / f"{service.name}.yaml"
    after = service_text(path.read_text(encoding="utf-8"), service, setting)
    changed, findings = check_text(after, path.name)
    if changed != with_setting(service, setting):
        raise InputError(
            f"{path}: generation cannot be rewritten: {'; '.join(one.message for one in findings) or 'aliases?'}",
            hint=f"write the setting into it by hand: {setting}",
        )
    return difference(project, {path: after, **generated(project.model_repository, changed)})


def service_text(text: str, service: Service, setting: Setting) -> str:
    """The service file with the setting in it. Comments, order and everything else stay; what already says so, or is absent
    and means so, is left alone.

    Args:
        text: the file.
        service: what it says.
        setting: what it shall say.
    """
    present = setting_of(service)
    if present == setting:
        return text
    yaml = round_trip()
    document = yaml.load(text)
    block = block_of(document, "generation")
    for name, value in setting.as_json().items():
        if getattr(present, name) != value:
            block[name] = value
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()
