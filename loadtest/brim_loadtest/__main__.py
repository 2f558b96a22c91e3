"""One process of a run: ``python -m brim_loadtest ROLE PARENT [MASTER_PORT]``, its job as a line of JSON on stdin."""

from __future__ import annotations

# Before anything else is imported that could keep an unpatched lock or socket.
from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import sys  # noqa: E402

from brim.errors import BrimError  # noqa: E402
from brim.server.embedded import die_with_parent  # noqa: E402
from brim_loadtest.grpc_line import make_cooperative  # noqa: E402
from brim_loadtest.job import Job, Role  # noqa: E402
from brim_loadtest.node import as_json, run_node, say  # noqa: E402


def main() -> None:
    """Do the one job on stdin."""
    role, parent, *port = sys.argv[1:]
    die_with_parent(int(parent))()
    make_cooperative()
    job = Job.from_json(json.loads(sys.stdin.readline()))
    try:
        run_node(Role(role), job, int(port[0]) if port else None)
    except BrimError as error:
        say(as_json(error))


if __name__ == "__main__":
    main()
