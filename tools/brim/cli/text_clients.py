"""Ready-made client lines for a running language model: curl for a whole text and for a stream, and tritonclient's stream."""

from __future__ import annotations

import json
import shlex

from brim.cli.clients import example_row
from brim.server.endpoint import Endpoint
from brim.service.schema import Service

OPTIONS = {"max_tokens": 32, "temperature": 0}


def text_curl_lines(endpoint: Endpoint, service: Service) -> str:
    """Two shell lines: one whole text, and one in pieces as server-sent events."""
    body = {"text_input": _prompt(service), "exclude_input_in_output": True, **OPTIONS}
    address = f"http://{endpoint.http}/v2/models/{service.name}"
    return "\n".join(
        f"{command} {address}/{path} -d {shlex.quote(json.dumps({**body, **more}, ensure_ascii=False))}"
        for command, path, more in (
            ("curl -s", "generate", {}),
            ("curl -sN", "generate_stream", {"stream": True}),
        )
    )


def text_python_lines(endpoint: Endpoint, service: Service) -> str:
    """A whole Python program that prints a text while it comes."""
    inputs = {"text_input": _prompt(service).encode(), "sampling_parameters": json.dumps(OPTIONS).encode()}
    return "\n".join(
        [
            "import queue, numpy as np, tritonclient.grpc as triton",
            "inputs, pieces = [], queue.Queue()",
            f'for name, value in {[*inputs.items()]!r} + [("stream", True)]:',
            '    kind, dtype = ("BOOL", np.bool_) if value is True else ("BYTES", np.object_)',
            "    inputs.append(triton.InferInput(name, [1], kind))",
            "    inputs[-1].set_data_from_numpy(np.array([value], dtype))",
            f'with triton.InferenceServerClient("{endpoint.grpc}") as client:',
            "    client.start_stream(lambda result, error: pieces.put((result, error)))",
            f'    client.async_stream_infer("{service.name}", inputs, enable_empty_final_response=True)',
            "    while True:",
            "        result, error = pieces.get(timeout=60)",
            "        if error is not None:",
            "            raise SystemExit(str(error))",
            '        piece = result.as_numpy("text_output")',
            "        if piece is not None:",
            '            print(piece[0].decode(), end="", flush=True)',
            '        if result.get_response().parameters["triton_final_response"].bool_param:',
            "            break",
            "    client.stop_stream()",
        ]
    )


def _prompt(service: Service) -> str:
    value = example_row(service)["text_input"].ravel()[0]
    return value.decode() if isinstance(value, bytes) else str(value)
