"""A copy of a model repository with another setting: a configuration of its own, and links to the model's files."""

from __future__ import annotations

import json
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.adapter_parameter import PARAMETER
from brim.config.textformat import write
from brim.measure.sweep import Settings, configured, read_config
from brim.tune.setting import DEFAULT, Setting, padding_block

CONFIG = "config.pbtxt"
PROFILES = "configs"


def with_configuration(config: ModelConfig, setting: Setting) -> ModelConfig:
    """A copy of a configuration under the setting. The default has an empty batcher block (no queue policy, no priorities),
    but for the order of answers.

    Raises:
        InputError: the setting does not fit the configuration.
    """
    made = ModelConfig()
    made.CopyFrom(config)
    if setting == DEFAULT:
        made.dynamic_batching.Clear()
        # An empty block stays on; without one Triton does not batch.
        made.dynamic_batching.SetInParent()
        made.dynamic_batching.preserve_ordering = config.dynamic_batching.preserve_ordering
    made = configured(made, Settings(preferred=setting.preferred, delay_us=setting.delay_us))
    groups = made.instance_group or [made.instance_group.add()]
    del made.instance_group[1:]
    groups[0].count = setting.instances
    if setting.threads is not None or setting.padding is not None:
        value = made.parameters[PARAMETER]
        known = json.loads(value.string_value or "{}")
        if setting.threads is not None:
            known["threads"] = setting.threads
        if setting.padding is not None:
            known["padding"] = padding_block(setting.padding)
        value.string_value = json.dumps(known, sort_keys=True)
    return made


def write_overlay(folder: Path, model_folder: Path, setting: Setting) -> Path:
    """A repository in ``folder`` whose one model is that of ``model_folder`` under the setting.

    Versions and other files are links, so that weights are not copied and what an instance writes beside them (a lock, say)
    is shared as it would be.

    Raises:
        InputError: the model's configuration cannot be read, or the setting does not fit it.
        FileExistsError: the folder has such a model already.
    """
    made = folder / model_folder.name
    made.mkdir(parents=True)
    config = with_configuration(read_config(model_folder / CONFIG), setting)
    (made / CONFIG).write_text(write(config), encoding="utf-8")
    for entry in sorted(model_folder.iterdir()):
        if entry.name not in (CONFIG, PROFILES):
            (made / entry.name).symlink_to(entry.resolve())
    return folder
