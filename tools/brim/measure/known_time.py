"""A model whose batch time is known, for tests and benchmarks: what a GPU does to a server, without a GPU.

An execution of b rows takes ``tau0_us + alpha_us * b`` while it holds a lock that all instances share. So two instances
overlap what comes before and after, and never compute: one GPU, however many instances.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.config.textformat import write
from brim.errors import InputError
from brim.limits import BATCH_LIMIT

MODEL_FILE = Path(__file__).with_name("known_time_model.py")
LOCK_FILE = "gpu.lock"
RECORD_FILE = "executions.jsonl"
WIDTH = 4
INPUT = "X"
OUTPUT = "Y"


@dataclass(frozen=True, slots=True)
class KnownTime:
    """How long an execution of b rows takes, and how it is served.

    Attributes:
        tau0_us: fixed time of an execution under the lock.
        alpha_us: further time for each row; fractions of a microsecond count.
        step_rows: rows are charged in whole steps of this many, as kernels of fixed tile sizes do; 1 for none.
        prepare_us: time before the lock is asked for, which instances overlap.
        instances: stub processes.
        max_batch: most rows of an execution.
        preferred: preferred batch sizes of the dynamic batcher.
        delay_us: its queue delay.
        record: whether each execution is noted in ``RECORD_FILE``.
        checks_cancelled: whether callers that have left, as far as the server knows, are left out of an execution, as the
            shipped adapter does where a row is worth it.
    """

    tau0_us: int
    alpha_us: float
    step_rows: int = 1
    prepare_us: int = 0
    instances: int = 1
    max_batch: int = BATCH_LIMIT
    preferred: Sequence[int] = ()
    delay_us: int = 0
    record: bool = False
    checks_cancelled: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be served.

        Raises:
            InputError: with every fault at once.
        """
        none_or_more = {
            "tau0_us": self.tau0_us,
            "alpha_us": self.alpha_us,
            "prepare_us": self.prepare_us,
            "delay_us": self.delay_us,
        }
        faults = [f"{name} {value:g}: must be 0 or more" for name, value in none_or_more.items() if not value >= 0]
        for name, value in {"step_rows": self.step_rows, "instances": self.instances}.items():
            if value < 1:
                faults.append(f"{name} {value}: must be 1 or more")
        if not 1 <= self.max_batch <= BATCH_LIMIT:
            faults.append(f"max_batch {self.max_batch}: must be 1 to {BATCH_LIMIT}")
        faults += [
            f"preferred {size}: must be 1 to max_batch {self.max_batch}"
            for size in self.preferred
            if not 1 <= size <= self.max_batch
        ]
        if faults:
            raise InputError("a model of known time: " + "; ".join(faults), hint="correct these values")

    def time_us(self, rows: int) -> float:
        """Time under the lock of an execution of so many rows."""
        return self.tau0_us + self.alpha_us * -(-rows // self.step_rows) * self.step_rows


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution as the model noted it, in nanoseconds of the machine's monotonic clock.

    Attributes:
        instance: name of the instance.
        rows: rows of all its requests.
        began_ns: its beginning.
        locked_ns: when it got the lock.
        free_ns: just before it gave the lock back.
    """

    instance: str
    rows: int
    began_ns: int
    locked_ns: int
    free_ns: int


def write_known_time(repository: Path, name: str, settings: KnownTime) -> Path:
    """Write the model into a Triton model repository: X, FP32 [4], to Y = 2 X. The model's folder.

    Raises:
        FileExistsError: the repository has a model of that name.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(write(_config(name, settings)), encoding="utf-8")
    (folder / "1" / "model.py").write_text(MODEL_FILE.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def read_executions(folder: Path) -> list[Execution]:
    """What the model in this folder noted so far, in the order of its notes."""
    path = folder / "1" / RECORD_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [Execution(**json.loads(line)) for line in lines]


def _config(name: str, settings: KnownTime) -> ModelConfig:
    config = ModelConfig(name=name, backend="python", max_batch_size=settings.max_batch)
    fp32 = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name["TYPE_FP32"].number
    config.input.add(name=INPUT, data_type=fp32, dims=[WIDTH])
    config.output.add(name=OUTPUT, data_type=fp32, dims=[WIDTH])
    group = config.instance_group.add(count=settings.instances)
    group.kind = type(group).KIND_CPU
    config.dynamic_batching.preferred_batch_size.extend(settings.preferred)
    config.dynamic_batching.max_queue_delay_microseconds = settings.delay_us
    # An empty block stays on: batching is what this model is for.
    config.dynamic_batching.SetInParent()
    parameters = {
        "tau0_us": str(settings.tau0_us),
        "alpha_us": repr(float(settings.alpha_us)),
        "step_rows": str(settings.step_rows),
        "prepare_us": str(settings.prepare_us),
        "lock_file": LOCK_FILE,
        "record_file": RECORD_FILE if settings.record else "",
        "checks_cancelled": str(int(settings.checks_cancelled)),
    }
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config
