"""INS: instance groups."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from brim.findings import Severity
from brim.lint.fields import elements
from brim.lint.rule import HEAD, Fault, rule
from brim.lint.subject import Model

VALIDATOR = "core `model_config_utils.cc`, ValidateInstanceGroup"
NORMALISER = "core `model_config_utils.cc`, NormalizeInstanceGroup"


def instance_count(model: Model) -> int:
    """Instances that serve requests, on one GPU or CPU: an omitted group or count means 1.

    The native ONNX Runtime and TensorFlow backends default to 2 on KIND_CPU (core ``SetDefaultInstanceCount``); a group
    without a kind is counted as on a GPU machine.
    """
    groups = model.config.instance_group
    total = 0
    for group in groups:
        fallback = (
            2 if group.kind == ModelInstanceGroup.KIND_CPU and model.backend in ("onnxruntime", "tensorflow") else 1
        )
        if not group.passive:
            total += (group.count if group.count > 0 else fallback) * max(1, len(set(group.gpus)))
    return total if groups else 1


@rule(
    "INS001",
    Severity.WARNING,
    "An instance count of 0 or less means the default.",
    why="Triton replaces it by 1 (by 2 for ONNX Runtime on the CPU); it does not switch the group off.",
    source=NORMALISER,
    good=HEAD + "instance_group { count: 1 }\n",
    bad=HEAD + "instance_group { count: 0 }\n",
)
def count_not_positive(model: Model) -> Iterator[Fault]:
    """A count of 0 that is written out; a negative one is an error."""
    for group_path, group in elements("instance_group", model.config.instance_group):
        path = f"{group_path}.count"
        if group.count < 0:
            yield Fault(f"count is {group.count}", path, "write 1 or more", Severity.ERROR)
        elif group.count == 0 and path in model.parsed.positions:
            yield Fault("count 0 means the default number of instances, not none", path, "write 1 or more")


@rule(
    "INS002",
    Severity.ERROR,
    "gpus on a group that does not run on GPUs.",
    why="Only KIND_GPU and KIND_AUTO take a list of GPUs.",
    source=VALIDATOR,
    good=HEAD + "instance_group { kind: KIND_GPU gpus: 0 }\n",
    bad=HEAD + "instance_group { kind: KIND_CPU gpus: 0 }\n",
)
def gpus_without_gpu(model: Model) -> Iterator[Fault]:
    """KIND_CPU or KIND_MODEL with ``gpus``."""
    for path, group in elements("instance_group", model.config.instance_group):
        if group.gpus and group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            kind = ModelInstanceGroup.Kind.Name(group.kind)
            said = f"{kind} excludes gpus, got {list(group.gpus)}"
            yield Fault(said, f"{path}.gpus", "remove gpus, or use KIND_GPU")


@rule(
    "INS003",
    Severity.WARNING,
    "Two instance groups have the same name.",
    why="Logs and statistics cannot tell their instances apart.",
    source="inferred: Triton does not refuse it",
    good=HEAD + 'instance_group [ { name: "a" }, { name: "b" } ]\n',
    bad=HEAD + 'instance_group [ { name: "a" }, { name: "a" } ]\n',
)
def duplicate_group(model: Model) -> Iterator[Fault]:
    """A group name that is used again."""
    names = [group.name for group in model.config.instance_group]
    for index, name in enumerate(names):
        if name and name in names[:index]:
            yield Fault(f"instance group {name!r} is declared twice", f"instance_group[{index}].name", "rename one")


@rule(
    "INS004",
    Severity.ERROR,
    "profile outside TensorRT, or not a number.",
    why="It names optimisation profiles of a TensorRT engine by their index.",
    source=VALIDATOR,
    good='name: "m"\nplatform: "tensorrt_plan"\nmax_batch_size: 0\ninstance_group { profile: "0" }\n',
    bad=HEAD + 'instance_group { profile: "0" }\n',
)
def profile_field(model: Model) -> Iterator[Fault]:
    """``profile`` on another backend, or one that is no index."""
    for group_path, group in elements("instance_group", model.config.instance_group):
        for path, profile in elements(f"{group_path}.profile", group.profile):
            if model.backend != "tensorrt":
                yield Fault("profile is only for TensorRT models", path, "remove it")
            elif not (profile.isascii() and profile.isdigit()):
                yield Fault(f"profile {profile!r} is not an index", path, 'write the number as a string, such as "0"')


@rule(
    "INS005",
    Severity.ERROR,
    "A GPU number is negative or listed twice in one group.",
    why="GPUs are numbered from 0; count, not the list, sets how many instances each one gets.",
    source=NORMALISER,
    good=HEAD + "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }\n",
    bad=HEAD + "instance_group { kind: KIND_GPU gpus: [ 0, -1 ] }\n",
)
def gpu_numbers(model: Model) -> Iterator[Fault]:
    """A GPU below 0, or the same one twice."""
    for group_path, group in elements("instance_group", model.config.instance_group):
        for position, gpu in enumerate(group.gpus):
            path = f"{group_path}.gpus[{position}]"
            if gpu < 0:
                yield Fault(f"GPU {gpu} does not exist", path, "GPUs are numbered from 0")
            elif gpu in group.gpus[:position]:
                yield Fault(f"GPU {gpu} is listed twice", path, "use count for more instances", Severity.WARNING)


@rule(
    "INS006",
    Severity.WARNING,
    "rate_limiter does nothing unless the server limits rates.",
    why="Without --rate-limit=execution_count the resources are ignored.",
    source="core `rate_limiter.cc`; server `--rate-limit`",
    good=HEAD + "instance_group { count: 1 }\n",
    bad=HEAD + 'instance_group { rate_limiter { resources { name: "gpu" count: 1 } } }\n',
)
def rate_limiter_flag(model: Model) -> Iterator[Fault]:
    """A ``rate_limiter`` block."""
    for path, group in elements("instance_group", model.config.instance_group):
        if group.HasField("rate_limiter"):
            said = "rate_limiter has no effect unless the server is started with --rate-limit=execution_count"
            yield Fault(said, f"{path}.rate_limiter", "start it so, or remove the block")
