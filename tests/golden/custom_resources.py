"""The parts of custom resources that the chart uses, by their definitions; a key that is not here is one that is misspelt.

Sources: kedacore/keda ``config/crd/bases/keda.sh_scaledobjects.yaml`` and its prometheus scaler; prometheus-operator's
``monitoring.coreos.com_servicemonitors`` and ``_prometheusrules``; kubernetes-sigs/gateway-api-inference-extension's
``inference.networking.k8s.io_inferencepools.yaml`` (v1).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
Duration = Annotated[str, Field(pattern=r"^(([0-9]+)(ms|s|m|h|d|w|y))+$")]
Text = Annotated[str, Field(strict=True)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Metadata(Part):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
    labels: dict[
        str, Annotated[str, Field(pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$", max_length=63)]
    ] = {}


class LabelSelector(Part):
    matchLabels: dict[str, Text]  # noqa: N815 - as Kubernetes spells it


class ScaleTarget(Part):
    apiVersion: Literal["apps/v1"]  # noqa: N815
    kind: Literal["Deployment", "StatefulSet"]
    name: Text


class ScalingPolicy(Part):
    type: Literal["Pods", "Percent"]
    value: Annotated[int, Field(strict=True, gt=0)]
    periodSeconds: Annotated[int, Field(strict=True, gt=0, le=1800)]  # noqa: N815


class ScalingRules(Part):
    stabilizationWindowSeconds: Annotated[int, Field(strict=True, ge=0, le=3600)]  # noqa: N815
    tolerance: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?m?$")]
    selectPolicy: Literal["Max", "Min", "Disabled"]  # noqa: N815
    policies: list[ScalingPolicy]


class Behavior(Part):
    scaleUp: ScalingRules  # noqa: N815
    scaleDown: ScalingRules  # noqa: N815


class AutoscalerConfig(Part):
    behavior: Behavior


class Advanced(Part):
    horizontalPodAutoscalerConfig: AutoscalerConfig  # noqa: N815


class PrometheusMetadata(Part):
    """All of a trigger's metadata are texts."""

    serverAddress: Annotated[str, Field(pattern="^https?://")]  # noqa: N815
    query: Text
    threshold: Text
    ignoreNullValues: Literal["true", "false"]  # noqa: N815


class Trigger(Part):
    type: Literal["prometheus"]
    metricType: Literal["AverageValue", "Value"]  # noqa: N815
    metadata: PrometheusMetadata


class ScaledObjectSpec(Part):
    scaleTargetRef: ScaleTarget  # noqa: N815
    pollingInterval: Count  # noqa: N815
    minReplicaCount: Count  # noqa: N815
    maxReplicaCount: Count  # noqa: N815
    advanced: Advanced
    triggers: Annotated[list[Trigger], Field(min_length=1)]


class ScaledObject(Part):
    apiVersion: Literal["keda.sh/v1alpha1"]  # noqa: N815
    kind: Literal["ScaledObject"]
    metadata: Metadata
    spec: ScaledObjectSpec


class Relabeling(Part):
    action: Literal["replace"]
    targetLabel: Text  # noqa: N815
    replacement: Text


class MonitorEndpoint(Part):
    port: Text
    path: Text
    interval: Duration
    scrapeTimeout: Duration  # noqa: N815
    relabelings: list[Relabeling]


class ServiceMonitorSpec(Part):
    selector: LabelSelector
    endpoints: Annotated[list[MonitorEndpoint], Field(min_length=1)]


class ServiceMonitor(Part):
    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815
    kind: Literal["ServiceMonitor"]
    metadata: Metadata
    spec: ServiceMonitorSpec


class Rule(Part):
    record: Text | None = None
    alert: Text | None = None
    expr: Text
    for_: Annotated[Duration | None, Field(alias="for")] = None
    labels: dict[str, Text] = {}
    annotations: dict[str, Text] = {}


class RuleGroup(Part):
    name: Annotated[str, Field(min_length=1)]
    interval: Duration | None = None
    rules: list[Rule]


class PrometheusRuleSpec(Part):
    groups: list[RuleGroup]


class PrometheusRule(Part):
    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815
    kind: Literal["PrometheusRule"]
    metadata: Metadata
    spec: PrometheusRuleSpec


class PortNumber(Part):
    number: Port


class PickerReference(Part):
    name: Text
    port: PortNumber
    failureMode: Literal["FailOpen", "FailClose"]  # noqa: N815


class InferencePoolSpec(Part):
    selector: LabelSelector
    targetPorts: Annotated[list[PortNumber], Field(min_length=1, max_length=8)]  # noqa: N815
    endpointPickerRef: PickerReference  # noqa: N815


class InferencePool(Part):
    apiVersion: Literal["inference.networking.k8s.io/v1"]  # noqa: N815
    kind: Literal["InferencePool"]
    metadata: Metadata
    spec: InferencePoolSpec


CUSTOM: dict[str, type[Part]] = {
    kind.__name__: kind for kind in (ScaledObject, ServiceMonitor, PrometheusRule, InferencePool)
}


def validate(resource: dict[str, Any]) -> None:
    """Raise ``pydantic.ValidationError`` for what its definition does not allow."""
    CUSTOM[resource["kind"]].model_validate(resource)
