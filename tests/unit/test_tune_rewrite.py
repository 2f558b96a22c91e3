"""Writing a choice: the service file keeps every comment, the configurations follow, and nothing is written unasked."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from brim.config.files import differences, write_configs
from brim.config.generate import model_config
from brim.config.textformat import parse
from brim.errors import InputError
from brim.paths import Project
from brim.runtime.padding import PaddingCost
from brim.service.load import check_text, load_service
from brim.service.schema import BatchTime, Padding, Runtime, Service
from brim.tune.demand import demand_of
from brim.tune.derive import bounds_for, derived
from brim.tune.overlay import with_configuration, write_overlay
from brim.tune.predict import Served
from brim.tune.refit import with_service_times
from brim.tune.rewrite import rewrite, service_text
from brim.tune.setting import DEFAULT, Setting, setting_of, with_setting
from tests.unit.tuning_bench import served, service

SHIPPED = ("image_classifier", "text_embedding")
CHOICE = Setting((64,), 2_500, 2)


@pytest.fixture
def project(checkout: Path, tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.services.mkdir()
    for name in SHIPPED:
        shutil.copy(checkout / "services" / f"{name}.yaml", made.services)
        write_configs(made.model_repository, load_service(made.services / f"{name}.yaml"))
    return made


def load(project: Project, name: str) -> Service:
    return load_service(project.services / f"{name}.yaml")


@pytest.mark.parametrize("name", SHIPPED)
def test_only_the_lines_of_the_choice_change(project: Project, name: str) -> None:
    path = project.services / f"{name}.yaml"
    before = path.read_text(encoding="utf-8")
    after = service_text(before, load(project, name), CHOICE)
    lost = [line for line in before.splitlines() if line not in after.splitlines()]
    assert lost == ["  max_queue_delay_ms: 0"]
    new = [line for line in after.splitlines() if line not in before.splitlines()]
    assert sorted(new) == sorted(["  max_queue_delay_ms: 2.5", "  preferred: [64]", "instances:", "  - {count: 2}"])
    assert check_text(after, path.name)[0] == with_setting(load(project, name), CHOICE)


def test_what_is_said_already_is_left_alone(project: Project) -> None:
    text = (project.services / "image_classifier.yaml").read_text(encoding="utf-8")
    of = load(project, "image_classifier")
    assert service_text(text, of, setting_of(of)) == text
    assert rewrite(project, of, setting_of(of)).diff == ""


def test_nothing_is_written_before_write_and_everything_after(project: Project) -> None:
    of = load(project, "image_classifier")
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    change = rewrite(project, of, CHOICE)
    assert {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()} == before
    assert "+++ b/services/image_classifier.yaml" in change.diff
    assert "+++ b/model_repository/image_classifier/config.pbtxt" in change.diff
    assert "+  preferred_batch_size: [64]" in change.diff
    change.write()
    changed = load(project, "image_classifier")
    assert setting_of(changed) == CHOICE
    assert differences(project.model_repository, changed) == []
    assert rewrite(project, changed, CHOICE).texts == {}


def test_a_list_of_groups_with_comments_becomes_one() -> None:
    text = """\
# which model
name: known
model: {onnx: known.onnx}  # a file
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
batching:  # as measured in spring
  preferred: [25, 50]
  max_queue_delay_ms: 7  # half a batch
instances:
  - {count: 1, kind: CPU}  # the first
  - {count: 2, kind: CPU}
"""
    of = check_text(text, "known.yaml")[0]
    assert of is not None
    after = service_text(text, of, Setting((), 0, 2))
    for comment in ("# which model", "# a file", "# as measured in spring", "# half a batch", "# the first"):
        assert comment in after
    found = check_text(after, "known.yaml")[0]
    assert found is not None
    assert setting_of(found) == Setting((), 0, 2)
    assert found.instances[0].kind == of.instances[0].kind


def test_a_file_that_cannot_be_rewritten_is_refused(tmp_path: Path) -> None:
    """The list is an alias of one that stands elsewhere: changing it here would change it there."""
    made = Project(tmp_path)
    made.services.mkdir()
    path = made.services / "known.yaml"
    path.write_text(
        "name: known\nmodel: {onnx: known.onnx}\n"
        "inputs:\n  - {name: X, dtype: FP32, shape: [4]}\noutputs:\n  - {name: Y, dtype: FP32, shape: [4]}\n"
        "slo: &shared {latency_ms: 50}\nbatching: &batching {preferred: [8]}\n"
        "instances:\n  - &one {count: 1}\n  - *one\n",
        encoding="utf-8",
    )
    of = load_service(path)
    assert setting_of(of).instances == 2
    after = service_text(path.read_text(encoding="utf-8"), of, Setting((), 0, 3))
    assert check_text(after, "known.yaml")[0] == with_setting(of, Setting((), 0, 3))
    other = of.model_copy(update={"description": "not what the file says"})
    with pytest.raises(InputError, match=r"known\.yaml.*cannot be rewritten"):
        rewrite(made, other, Setting((), 0, 3))


def test_the_default_has_an_empty_batcher_block(project: Project, tmp_path: Path) -> None:
    folder = project.model_repository / "image_classifier"
    (folder / "1").mkdir(exist_ok=True)
    (folder / "1" / "model.onnx").write_bytes(b"weights")
    repository = write_overlay(tmp_path / "overlay", folder, CHOICE)
    made = repository / "image_classifier"
    config = parse((made / "config.pbtxt").read_bytes(), "config.pbtxt").message
    assert config is not None
    assert list(config.dynamic_batching.preferred_batch_size) == [64]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2_500
    assert [group.count for group in config.instance_group] == [2]
    assert (made / "1" / "model.onnx").read_bytes() == b"weights"
    assert (made / "1").is_symlink()
    assert not (made / "configs").exists()
    config.dynamic_batching.default_queue_policy.max_queue_size = 9
    default = with_configuration(config, DEFAULT)
    assert default.HasField("dynamic_batching")
    assert default.dynamic_batching.ByteSize() == 0
    assert default.instance_group[0].count == 1
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 9, "the given one is left alone"


def test_bounds_follow_from_the_objective_and_the_batch_time() -> None:
    machine = served(10_000, 100)
    bounds = bounds_for(service(), machine, Setting(delay_us=5_000))
    assert bounds.in_flight == 300, "three batches of 20 ms after 20.1 ms, within 99.7 ms"
    assert bounds.timeout_us == 100_000, "no less than the objective"
    assert bounds_for(service(), machine, Setting(delay_us=50_000)).timeout_us == 4 * 20_000 + 50_000 + 300
    patient = service(slo={"latency_ms": 100, "caller_gives_up_ms": 150})
    assert bounds_for(patient, machine, DEFAULT).timeout_us == 150_000
    assert bounds_for(service(slo={"latency_ms": 1}), machine, DEFAULT).in_flight == 100


def test_instances_side_by_side_let_in_so_many_more() -> None:
    machine = served(10_000, 100, serialised=False)
    assert bounds_for(service(), machine, Setting(instances=2)).in_flight == 600
    assert bounds_for(service(), served(10_000, 100), Setting(instances=2)).in_flight == 300


GATEWAY = """\
name: known
model: {onnx: known.onnx}
inputs:
  - {name: X, dtype: FP32, shape: [4]}
outputs:
  - {name: Y, dtype: FP32, shape: [4]}
slo: {latency_ms: 100}
batching:
  max_queue_delay_ms: 1  # as it was
"""


def loaded(text: str) -> Service:
    found, findings = check_text(text, "known.yaml")
    assert found is not None, findings
    return found


def test_what_the_gateway_needs_is_written_with_a_word_on_where_it_comes_from() -> None:
    of, machine = loaded(GATEWAY), served(10_000, 100)
    gateway = derived(of, machine, setting_of(of))
    after = service_text(GATEWAY, of, setting_of(of), gateway)
    assert after.startswith(GATEWAY)
    found = loaded(after)
    assert found.batching.in_flight_bound == 300 == bounds_for(of, machine, setting_of(of)).in_flight
    assert found.batching.batch_time == BatchTime(tau0_us=10_000, alpha_us=100)
    assert re.search(
        r"in_flight_bound: 300 +# by brim tune: so many are answered within the SLO; a full batch takes 20 ms", after
    )
    assert found.batching.model_copy(update={"in_flight_bound": None, "batch_time": None}) == of.batching


@pytest.mark.parametrize("block", ["", "batching: {max_queue_delay_ms: 1}\n", "runtime: {threads: 1}\n"])
def test_every_form_of_a_file_takes_it(block: str) -> None:
    text = GATEWAY.partition("batching:")[0] + block
    of = loaded(text)
    setting = Setting((8,), 2_000, 2, 2, PaddingCost(1_000.0, 2.0, max_tokens=64))
    gateway = derived(of, served(10_000, 100), setting)
    after = service_text(text, of, setting, gateway)
    found = loaded(after)
    assert setting_of(found) == Setting((8,), 2_000, 2)
    assert found.runtime == Runtime(threads=2, padding=Padding(fixed_us=1_000, per_token_us=2, max_tokens=64))
    assert found.batching.in_flight_bound == gateway.in_flight_bound
    assert service_text(after, found, setting, derived(found, served(10_000, 100), setting)) == after
    kept = service_text(text, of, DEFAULT)
    assert loaded(kept).runtime == of.runtime


@pytest.mark.parametrize(
    ("machine", "same"),
    [(served(10_400, 103), True), (served(9_300, 94), True), (served(14_000, 140), False), (served(5_000, 50), False)],
)
def test_a_second_measurement_of_the_same_machine_changes_nothing(machine: Served, same: bool) -> None:
    before = loaded(GATEWAY)
    text = service_text(GATEWAY, before, DEFAULT, derived(before, served(10_000, 100), DEFAULT))
    of = loaded(text)
    assert (service_text(text, of, DEFAULT, derived(of, machine, DEFAULT)) == text) is same


def test_another_objective_moves_the_bound() -> None:
    before = loaded(GATEWAY)
    text = service_text(GATEWAY, before, DEFAULT, derived(before, served(10_000, 100), DEFAULT))
    of = loaded(text.replace("latency_ms: 100", "latency_ms: 65"))
    again = derived(of, served(10_000, 100), DEFAULT)
    assert again.in_flight_bound == 200
    assert again.batch_time == of.batching.batch_time


@pytest.mark.parametrize(
    "machine",
    [served(0, 100), served(10_000, 0), Served((100.0,)), Served(tuple(1.0 * rows**2 for rows in range(1, 101)))],
)
def test_a_line_through_any_times_is_no_less_than_nothing(machine: Served) -> None:
    line = derived(service(max_batch_size=machine.max_rows), machine, DEFAULT).batch_time
    assert line.tau0_us >= 0 and line.alpha_us >= 0
    assert line.tau0_us + line.alpha_us > 0


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "true", "2147483648"])
def test_a_bound_that_lets_nobody_in_is_refused(value: str) -> None:
    found, findings = check_text(GATEWAY + f"  in_flight_bound: {value}\n", "known.yaml")
    assert found is None
    assert ["in_flight_bound" in one.message for one in findings] == [True]


def test_the_order_of_answers_stays_with_the_default() -> None:
    of = service(batching={"preserve_ordering": True, "max_queue_delay_ms": 5, "in_flight_bound": 7})
    made = with_setting(of, DEFAULT).batching
    assert (made.preserve_ordering, made.max_queue_delay_ms, made.in_flight_bound) == (True, 0, 7)
    config = with_configuration(model_config(of), DEFAULT)
    assert config.dynamic_batching.preserve_ordering
    assert not config.dynamic_batching.max_queue_delay_microseconds


def test_threads_and_cutting_reach_the_adapter_as_the_service_file_would_give_them() -> None:
    of = service(runtime={"threads": 1, "longest_tokens": 64})
    setting = Setting(threads=2, padding=PaddingCost(1_000.0, 2.0))
    made = with_configuration(model_config(of), setting)
    wanted = model_config(with_setting(of, setting))
    assert json.loads(made.parameters["brim"].string_value) == json.loads(wanted.parameters["brim"].string_value)


def test_times_in_service_move_the_batch_time() -> None:
    alone = served(5_000, 20)
    truth = {size: 5_000 + 20 * size + 400 + 60 * size for size in (1, 4, 16, 50)}
    moved = with_service_times(
        alone, {size: float(time_us) for size, time_us in truth.items()}, dict.fromkeys(truth, 10)
    )
    assert moved.time_us[49] == pytest.approx(truth[50])
    assert moved.time_us[99] == pytest.approx(5_400 + 80 * 100)
    few = with_service_times(alone, {1: 5_620.0}, {1: 100})
    assert few.time_us[0] == pytest.approx(5_620)
    assert few.time_us[99] == pytest.approx(5_000 + 2_000 + 600), "one size says nothing about a row's own cost"
    assert with_service_times(alone, {}, {}) == alone
    faster = with_service_times(alone, {1: 1.0, 2: 1.0, 10: 1.0}, {1: 1, 2: 1, 10: 1})
    assert min(faster.time_us) > 0
    assert list(faster.time_us) == sorted(faster.time_us)


def test_bursts_have_the_peak_and_the_mean_stays() -> None:
    demand = demand_of(service(traffic={"rate_per_s": 100, "peak_per_s": 300, "arrival": "bursty"}))
    assert demand.burst == 3
    assert demand.needed_per_s == 100
    times = demand.arrivals_us(100, 3_000, 1)
    assert 100 * times[-1] / 1e6 == pytest.approx(3_000, rel=0.1)
    assert (times == demand.arrivals_us(100, 3_000, 1)).all()
    assert demand_of(service(traffic={"rate_per_s": 1, "peak_per_s": 500, "arrival": "bursty"})).burst == 10
