"""Names of the endpoint-picker protocol (Gateway API Inference Extension, proposal 004, v1.0.0), and of the gateway."""

from __future__ import annotations

DESTINATION = "x-gateway-destination-endpoint"
"""Header, and key of the dynamic metadata: one ``host:port``, or several, of which a retry takes the next."""
LB_METADATA = "envoy.lb"
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
MODEL_HEADER, CLASS_HEADER = "x-brim-model", "x-brim-class"
"""Set by the gateway on gRPC calls; and the class of a caller."""
HEAD_LENGTH_HEADER = "inference-header-content-length"
READ_HEADERS = (":path", "content-type", MODEL_HEADER, CLASS_HEADER, HEAD_LENGTH_HEADER)
"""All that the picker looks at."""
