"""Names of the series that the scaling rules read and record."""

from __future__ import annotations

FLEET_JOB, GATEWAY_JOB = "tritonserver", "gateway"
"""``job`` of the replicas' metrics, and of the gateway's. The chart puts its own in their place."""
RATE_WINDOW_S = 60
"""Of rates: at least four scrapes, or one that fails leaves a hole."""
EVALUATED_EVERY_S = 5
PENDING, QUEUE_US = "nv_inference_pending_request_count", "nv_inference_queue_duration_us"
SUCCESS, GPU_UTILISATION = "nv_inference_request_success", "nv_gpu_utilization"
GATEWAY_REQUESTS = "envoy_brim_requests"
IN_FLIGHT, CLUSTER_LABEL = "envoy_cluster_upstream_rq_active", "envoy_cluster_name"
REFUSALS = "queue_full|room_full|deadline|deadline_unreachable"
"""Reasons for which the gateway refuses whom there is no room for, batch traffic before others apart (``shed``)."""
DESIRED, SHED = "brim_fleet:desired_replicas:number", "brim_fleet:shed_batch:bool"
PRESSURE, PRESSURES = "brim_fleet:pressure:max", "brim_model:pressure:part"
PRESENT, READY = "brim_fleet:present_replicas:count", "brim_fleet:ready_replicas:count"
INCOMPLETE = "brim_fleet:incomplete_models:count"
WANTED, UNBOUNDED = "brim_fleet:wanted_replicas:bounded", "brim_fleet:wanted_replicas:unbounded"
ONE_ANSWERED, CARRIED = "brim_model:replica_answered:rate", "brim_model:replica_carried:rate"
ONE_CALM, ONE_TROUBLED = "brim_model:replica_answered_calm:rate", "brim_model:replica_answered_troubled:rate"
CARRIED_LOAD = "brim_fleet:carried_load:replicas"
MORE, ENOUGH = "brim_fleet:more_replicas:number", "brim_fleet:enough_replicas:number"
SPARES, LEAST, MOST = "brim_fleet:spares:limit", "brim_fleet:min_replicas:limit", "brim_fleet:max_replicas:limit"
WAITING_SUM, REPORTING = "brim_model:waiting_requests:sum", "brim_model:reporting_replicas:count"
ANSWERED, MEAN_WAIT = "brim_model:answered_requests:rate", "brim_model:queue_us:mean"
TTFT_P90, KV_MEAN = "brim_model:ttft_us:p90", "brim_model:kv_usage:mean"
WAITING_LIMIT, QUEUE_LIMIT = "brim_model:waiting_requests:limit", "brim_model:queue_us:limit"
TTFT_LIMIT, KV_LIMIT = "brim_model:ttft_us:limit", "brim_model:kv_usage:limit"
EXPORTER_JOB = "brim"
"""Of ``brim exporter``."""
BATCH_ROWS, BUSY_US, INSTANCES, MAX_ROWS = (
    "brim_batch_rows",
    "brim_busy_us_total",
    "brim_instances",
    "brim_max_batch_rows",
)
REQUESTS, MODEL_LOADED, SOURCE_UP = "brim_requests_total", "brim_model_loaded", "brim_exporter_source_up"
"""Of its page."""
RATE, OUTCOME_RATE, REFUSED_RATE = (
    "brim_service:rate:sum",
    "brim_service:outcome_rate:sum",
    "brim_service:refused_rate:sum",
)
GOODPUT, GOOD, ELIGIBLE_RATE = "brim_service:goodput:rate", "brim_service:good:rate", "brim_service:eligible:rate"
GOODPUT_RATIO, ERROR_BUDGET = "brim_service:goodput_ratio:rate", "brim_service:error_budget:ratio"
BURN, BURN_LIMIT = "brim_service:slo_burn:ratio", "brim_service:slo_burn:limit"
LATENCY_P50, LATENCY_P99 = "brim_service:latency_us:p50", "brim_service:latency_us:p99"
MEAN_BATCH, FILL, DUTY = "brim_service:mean_batch:rows", "brim_service:fill:ratio", "brim_service:duty:ratio"
QUEUED, QUEUED_LIMIT, WAITING_NOW = (
    "brim_service:queue_us:mean",
    "brim_service:queue_us:limit",
    "brim_service:waiting:sum",
)
EVERY_CLASS = "all"
"""In place of a class, of a language model, whose host does not tell its callers' classes apart."""
