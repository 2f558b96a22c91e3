"""The model loaded anew while callers use it: nobody may notice.

Triton loads an already loaded model in the background and swaps it in when it is ready (``ModelLifeCycle::AsyncLoad`` in
core's model_lifecycle.cc): measured on 24.10, no request is lost or refused. A load that would change nothing is not
done, so each one here carries the server's own configuration with one more parameter. Unloading first is another thing:
until the load has ended every caller gets 404 or NOT_FOUND.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

from tritonclient.utils import InferenceServerException

from brim.isolation.background import Traffic
from brim.isolation.bench import Account, Bench
from brim.isolation.check import Material
from brim.isolation.traffic import good
from brim.server.endpoint import NO_ANSWER

RELOADS = 4
LOAD_TIMEOUT_S = 180.0
POLL_S = 0.02
MARK = "brim_isolation_reload"


def reload_under_load(bench: Bench, material: Material, prefix: str) -> Account:
    """Callers send good rows all the time; meanwhile the model is loaded anew several times."""
    account = Account()
    if bench.own is None and not bench.options.may_reload:
        account.skipped = "the server is not the suite's own, and --allow-reload is not given"
        return account
    with closing(bench.control.http_client(concurrency=2, timeout_s=LOAD_TIMEOUT_S)) as client:
        try:
            config = client.get_model_config(bench.model)
            requests = good(material.pool, material.count, material.draw)
            try:
                with Traffic(bench, requests, prefix, account, callers=material.callers) as traffic:
                    _reload(client, bench, config, traffic, account, wanted=material.count)
            finally:
                if account.figures:
                    client.load_model(bench.model, config=json.dumps(config))
        except InferenceServerException as error:
            if not account.figures:
                account.skipped = f"the server does not load models when asked to: {error.message()}"
            else:
                account.troubles.append(f"the model could not be loaded anew: {error.message()}")
        except NO_ANSWER as error:
            account.troubles.append(f"the server did not answer the request to load: {error}")
    return account


def _reload(
    client: Any, bench: Bench, config: dict[str, Any], traffic: Traffic, account: Account, *, wanted: int
) -> None:
    done = 0
    for number in range(RELOADS):
        enough = len(traffic.flights.requests) + wanted // RELOADS
        while traffic.running and len(traffic.flights.requests) < enough:
            time.sleep(POLL_S)
        marked = {**config, "parameters": {**config.get("parameters", {}), MARK: {"string_value": str(number)}}}
        client.load_model(bench.model, config=json.dumps(marked))
        in_use = client.get_model_config(bench.model).get("parameters", {}).get(MARK, {})
        done += in_use.get("string_value") == str(number)
        account.figures["reloads"] = done
    account.note = f"the model was loaded anew {done} times meanwhile"
    if done < RELOADS:
        account.troubles.append(
            f"of {RELOADS} loads {done} were done: the server kept the model that it had at the others"
        )
