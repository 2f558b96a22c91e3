"""One generator process of ``openloop_processes``: reads its job, says that it is ready, is told when to begin, answers."""

from __future__ import annotations

import json
import sys

from brim.errors import BrimError
from brim.measure.openloop_processes import READY, job_from_json, result_as_json
from brim.measure.openloop_run import send_messages
from brim.server.embedded import die_with_parent


def main() -> None:
    """Run the one job on stdin."""
    die_with_parent(int(sys.argv[1]))()
    endpoint, protocol, whole, due_us, plan = job_from_json(json.loads(sys.stdin.readline()))

    def agree() -> float:
        _say({READY: True})
        return float(sys.stdin.readline())

    try:
        result = send_messages(endpoint, protocol, whole, due_us, plan, agree=agree)
    except BrimError as error:
        _say({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    else:
        _say({"result": result_as_json(result)})


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
