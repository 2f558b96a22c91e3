"""Every generated configuration is accepted by the real server.

The wheel has the python backend only, and there is no GPU: of the models on native backends the backend and the kind of
instance are exchanged, and nothing else, so that Triton checks all that is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.config.generate import Profile, model_configs, profiles_of
from brim.config.textformat import write
from brim.server.embedded import EmbeddedServer
from brim.service.load import load_service
from brim.service.schema import Service

ZEROS = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.outputs = self.config["output"]

    def execute(self, requests):
        answers = []
        for request in requests:
            rows = request.inputs()[0].shape()[0]
            decoupled = pb_utils.using_decoupled_model_transaction_policy(self.config)
            tensors = []
            for output in self.outputs:
                shape = [*([] if decoupled else [rows]), *(max(1, int(size)) for size in output["dims"])]
                kind = pb_utils.triton_string_to_numpy(output["data_type"])
                tensors.append(pb_utils.Tensor(output["name"], np.zeros(shape, kind)))
            answers.append(pb_utils.InferenceResponse(tensors))
            if decoupled:
                request.get_response_sender().send(answers.pop(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return answers or None
"""


def loadable(service: Service, profile: Profile) -> dict[str, pb.ModelConfig]:
    """The configurations with what this machine lacks exchanged."""
    configs = model_configs(service, profile)
    for config in configs.values():
        config.backend = "python"
        config.default_model_filename = ""
        for group in config.instance_group:
            group.kind = pb.ModelInstanceGroup.KIND_CPU
    return configs


@pytest.mark.parametrize("profile", list(Profile))
def test_configuration_loads_in_the_real_server(tmp_path: Path, checkout: Path, profile: Profile) -> None:
    files = [*sorted((checkout / "services").glob("*.yaml")), checkout / "tests" / "golden" / "everything.yaml"]
    services = [service for service in map(load_service, files) if profile in profiles_of(service)]
    expected = {name: config for service in services for name, config in loadable(service, profile).items()}
    for name, config in expected.items():
        folder = tmp_path / "repository" / name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(ZEROS, encoding="utf-8")
        (folder / "config.pbtxt").write_text(write(config), encoding="utf-8")
        for output in config.output:
            if output.label_filename:
                classes = "".join(f"class {number}\n" for number in range(output.dims[-1]))
                (folder / output.label_filename).write_text(classes, encoding="utf-8")
    names = list(expected)
    with (
        EmbeddedServer(tmp_path / "repository", names, cache=checkout / ".cache", log_file=tmp_path / "log") as server,
        server.endpoint.grpc_client() as client,
    ):
        for name, wanted in expected.items():
            loaded = client.get_model_config(name).config
            assert loaded.max_batch_size == wanted.max_batch_size
            assert list(loaded.input) == list(wanted.input)
            assert list(loaded.output) == list(wanted.output)
            assert [warmup.batch_size for warmup in loaded.model_warmup] == [w.batch_size for w in wanted.model_warmup]
            assert loaded.model_transaction_policy == wanted.model_transaction_policy
            assert loaded.HasField("dynamic_batching") == wanted.HasField("dynamic_batching")
            if not wanted.HasField("dynamic_batching"):
                continue
            # Triton fills in [max_batch_size] where no preferred size is given.
            preferred = list(wanted.dynamic_batching.preferred_batch_size) or [wanted.max_batch_size]
            assert list(loaded.dynamic_batching.preferred_batch_size) == preferred
            for field in ("max_queue_delay_microseconds", "priority_levels", "default_priority_level"):
                assert getattr(loaded.dynamic_batching, field) == getattr(wanted.dynamic_batching, field)
            assert loaded.dynamic_batching.default_queue_policy == wanted.dynamic_batching.default_queue_policy
