"""Brim: fill every Triton batch to the brim, spill nobody's request."""

import os

__version__ = "0.1.0"

# gRPC's handlers around fork() end a child, before it is the program that it was made for, when calls are under way in
# the parent ("Check failed: next_worker->state == KICKED"). Every child here becomes another program at once and uses
# no gRPC, so they are needless; gRPC reads this when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
