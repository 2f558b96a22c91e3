"""Token models: the policy in front of an engine that batches again before every step.

The engine itself (paged KV cache, attention, sampling) is somebody else's and sits behind ``brim.engine.engine``; ours are
who gets a seat, when, and in which pieces a long prompt is fed, so that this part knows neither Triton nor any engine and
runs against ``brim.engine.fake`` in tests and simulations.

Words: a *request* is one caller's call; a *sequence* is what the engine is given, and one request can be several of them,
one after another (pieces of a long prompt, or what goes on after a preemption). A *step* is one run of the model over one
token of every decoding sequence and a share of the prompts. A *block* is the unit in which the KV cache is handed out.
"""
