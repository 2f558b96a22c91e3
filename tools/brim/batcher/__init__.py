"""A simulator of Triton's dynamic batcher: the launch rule, the queue in front of it, instances behind it.

It knows nothing of a server: a configuration, the time of a batch and some traffic go in, what becomes of every request
comes out. Source of every rule: triton-inference-server/core, ``src/dynamic_batch_scheduler.cc``,
``src/scheduler_utils.cc``, ``src/rate_limiter.cc``, ``src/instance_queue.cc`` and ``src/payload.cc``, read at commit
73aad7c; checked against tritonserver 2.51.0 (24.10).
"""
