"""Whether models answer: the gateway's own canaries, sent to the tritonserver beside this probe.

    python3 canary.py ENVOY_JSON MODEL [MODEL...]

Needs nothing but Python. Ends with 0 when each model has answered, or is busy: its queue is full, or it has answered others,
or given them tokens, while this canary waited. A model that is busy is not dead, and a replica taken away under overload
leaves more for the others.
"""

import http.client
import json
import re
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

SERVER = "http://127.0.0.1:8000"
METRICS = "http://127.0.0.1:8002/metrics"
ANSWER_TIMEOUT_S = 25
PAGE_TIMEOUT_S = 3
PROGRESS = ("nv_inference_request_success", "vllm:generation_tokens_total")
FULL = b"Exceeds maximum queue size"


def canaries(path):
    """Model -> path, headers and body, from the health checks of the gateway's clusters."""
    clusters = json.loads(Path(path).read_text(encoding="utf-8"))["static_resources"]["clusters"]
    found = {}
    for cluster in clusters:
        kind, _, model = cluster["name"].partition("/")
        for check in cluster.get("health_checks", ()):
            http = check.get("http_health_check", {})
            if kind == "triton" and model and "send" in http:
                headers = {one["header"]["key"]: one["header"]["value"] for one in http["request_headers_to_add"]}
                found[model] = (http["path"], headers, bytes.fromhex(http["send"]["text"]))
    return found


def progress(model):
    """Answers and tokens that a model has given since the server's start; None when the page does not tell."""
    try:
        with urllib.request.urlopen(METRICS, timeout=PAGE_TIMEOUT_S) as answer:
            page = answer.read().decode()
    except (OSError, ValueError):
        return None
    lines = re.findall(rf"^(?:{'|'.join(PROGRESS)})\{{([^}}]*)\}} (\S+)$", page, re.MULTILINE)
    counts = [float(value) for labels, value in lines if f'model="{model}"' in labels.split(",")]
    return sum(counts) if counts else None


def trouble(model, canary):
    """Why the model counts as dead; None when it does not."""
    path, headers, body = canary
    before = progress(model)
    request = urllib.request.Request(SERVER + path, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            answer.read()
        return None
    except urllib.error.HTTPError as error:
        text = error.read()
        return None if FULL in text else f"{model}: {error.code} {text[:200].decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        after = progress(model)
        busy = isinstance(error, TimeoutError) and None not in (before, after) and after > before
        return None if busy else f"{model}: no answer: {error}"


def main(path, *models):
    """The exit status; troubles go to stderr."""
    known = canaries(path)
    troubles = [f"{model}: the gateway's configuration has no canary for it" for model in models if model not in known]

    def look(model):
        said = trouble(model, known[model])
        if said:
            troubles.append(said)

    # Side by side: each may take as long as the probe has.
    threads = [threading.Thread(target=look, args=(model,)) for model in models if model in known]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stderr.writelines(f"{said}\n" for said in troubles)
    return 1 if troubles or not models else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
