"""Serve a model repository: the embedded tritonserver, a container, or a server that already runs."""
