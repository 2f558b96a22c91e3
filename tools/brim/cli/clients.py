"""Ready-made client lines for a running service: curl, tritonclient, and tritonclient's asyncio side."""

from __future__ import annotations

import json

import numpy as np

from brim.server.endpoint import Endpoint
from brim.service.samples import Row, random_rows, sample_rows
from brim.service.schema import Service


def example_row(service: Service) -> Row:
    """The first sample, or a random row."""
    rows = sample_rows(service)
    return rows[0] if rows else random_rows(service, 1)[0]


def curl_line(endpoint: Endpoint, service: Service) -> str:
    """One shell line that sends one row as JSON."""
    types = {tensor.name: tensor.dtype.value for tensor in service.inputs}
    inputs = []
    for name, array in example_row(service).items():
        data = [value.decode("utf-8") if isinstance(value, bytes) else value for value in array.ravel().tolist()]
        inputs.append({"name": name, "shape": list(array.shape), "datatype": types[name], "data": data})
    body = json.dumps({"inputs": inputs}, ensure_ascii=False).replace("'", "'\\''")
    return f"curl -s http://{endpoint.http}/v2/models/{service.name}/infer -d '{body}'"


def _value(array: np.ndarray[tuple[int, ...], np.dtype[np.object_]]) -> str:
    if array.dtype == np.object_:
        return f"np.array({array.tolist()!r}, dtype=object)"
    return f"np.array({array.tolist()!r}, np.{array.dtype.name})"


def python_lines(endpoint: Endpoint, service: Service, *, asynchronous: bool) -> str:
    """A whole Python program with tritonclient: gRPC and synchronous, or HTTP and asyncio."""
    types = {tensor.name: tensor.dtype.value for tensor in service.inputs}
    module = "http.aio" if asynchronous else "grpc"
    address = endpoint.http if asynchronous else endpoint.grpc
    lines = [f"import numpy as np, tritonclient.{module} as triton", "inputs = []"]
    for name, array in example_row(service).items():
        lines += [
            f"value = {_value(array)}",
            f'inputs.append(triton.InferInput("{name}", list(value.shape), "{types[name]}"))',
            "inputs[-1].set_data_from_numpy(value)",
        ]
    output = service.outputs[0].name
    if not asynchronous:
        return "\n".join(
            [
                *lines,
                f'client = triton.InferenceServerClient("{address}")',
                f'print(client.infer("{service.name}", inputs).as_numpy("{output}"))',
            ]
        )
    return "\n".join(
        [
            "import asyncio",
            *lines,
            "async def ask():",
            f'    async with triton.InferenceServerClient("{address}") as client:',
            f'        print((await client.infer("{service.name}", inputs)).as_numpy("{output}"))',
            "asyncio.run(ask())",
        ]
    )
