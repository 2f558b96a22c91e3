"""Every generated configuration is accepted by the real server.

The wheel has the python backend only, and there is no GPU: for the native profiles the backend and the kind of instance are
exchanged, and nothing else, so that Triton checks all that is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from brim.config.generate import Profile, model_config
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
        self.outputs = json.loads(args["model_config"])["output"]

    def execute(self, requests):
        answers = []
        for request in requests:
            rows = request.inputs()[0].shape()[0]
            tensors = []
            for output in self.outputs:
                shape = [rows, *(max(1, int(size)) for size in output["dims"])]
                kind = pb_utils.triton_string_to_numpy(output["data_type"])
                tensors.append(pb_utils.Tensor(output["name"], np.zeros(shape, kind)))
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""


def loadable(service: Service, profile: Profile) -> pb.ModelConfig:
    """The configuration with what this machine lacks exchanged."""
    config = model_config(service, profile)
    config.backend = "python"
    config.default_model_filename = ""
    for group in config.instance_group:
        group.kind = pb.ModelInstanceGroup.KIND_CPU
    return config


@pytest.mark.parametrize("profile", list(Profile))
def test_configuration_loads_in_the_real_server(tmp_path: Path, checkout: Path, profile: Profile) -> None:
    files = [*sorted((checkout / "services").glob("*.yaml")), checkout / "tests" / "golden" / "everything.yaml"]
    services = [load_service(path) for path in files]
    for service in services:
        folder = tmp_path / "repository" / service.name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(ZEROS, encoding="utf-8")
        (folder / "config.pbtxt").write_text(write(loadable(service, profile)), encoding="utf-8")
        for output in service.outputs:
            if output.labels:
                classes = "".join(f"class {number}\n" for number in range(output.shape[-1]))
                (folder / output.labels).write_text(classes, encoding="utf-8")
    names = [service.name for service in services]
    with (
        EmbeddedServer(tmp_path / "repository", names, cache=checkout / ".cache", log_file=tmp_path / "log") as server,
        server.endpoint.grpc_client() as client,
    ):
        for service in services:
            loaded = client.get_model_config(service.name).config
            wanted = loadable(service, profile)
            assert loaded.max_batch_size == wanted.max_batch_size
            assert list(loaded.input) == list(wanted.input)
            assert list(loaded.output) == list(wanted.output)
            assert [warmup.batch_size for warmup in loaded.model_warmup] == [w.batch_size for w in wanted.model_warmup]
            # Triton fills in [max_batch_size] where no preferred size is given.
            preferred = list(wanted.dynamic_batching.preferred_batch_size) or [wanted.max_batch_size]
            assert list(loaded.dynamic_batching.preferred_batch_size) == preferred
            for field in ("max_queue_delay_microseconds", "priority_levels", "default_priority_level"):
                assert getattr(loaded.dynamic_batching, field) == getattr(wanted.dynamic_batching, field)
            assert loaded.dynamic_batching.default_queue_policy == wanted.dynamic_batching.default_queue_policy
