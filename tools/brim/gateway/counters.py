"""Every inference by model, class, code and reason, and its time, on Envoy's own metrics page."""

from __future__ import annotations

from brim.gateway.xds import AROUND_HEADER, NOT, REASON_HEADER, TYPE, Document, equal


def counters() -> Document:
    """Every inference by model, class, code and reason, and its time, on Envoy's own metrics page.

    The bounds on the number of series: models and classes are those of the configuration, and reasons and codes are few.
    """
    tags = [
        {"name": name, "value_format": text}
        for name, text in (
            ("model", "%DYNAMIC_METADATA(brim:model)%"),
            ("class", "%DYNAMIC_METADATA(brim:class)%"),
            ("code", "%RESPONSE_CODE%"),
            ("grpc_status", "%GRPC_STATUS_NUMBER%"),
            ("reason", f"%RESP({REASON_HEADER})%"),
            ("flags", "%RESPONSE_FLAGS%"),
        )
    ]
    return {
        "name": "envoy.access_loggers.stats",
        # What goes around once is counted when it comes back.
        "filter": {"header_filter": {"header": equal(AROUND_HEADER, "1") | NOT}},
        "typed_config": {
            "@type": f"{TYPE}extensions.access_loggers.stats.v3.Config",
            "stat_prefix": "brim",
            "counters": [{"stat": {"name": "requests", "tags": tags}, "value_fixed": 1}],
            "histograms": [
                {
                    "stat": {"name": "request_duration", "tags": tags[:3]},
                    "unit": "Milliseconds",
                    "value_format": "%DURATION%",
                }
            ],
        },
    }
