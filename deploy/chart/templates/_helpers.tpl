{{- define "brim.name" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{- define "brim.triton" -}}{{ include "brim.name" . }}-triton{{- end -}}
{{- define "brim.gateway" -}}{{ include "brim.name" . }}-gateway{{- end -}}
{{- define "brim.picker" -}}{{ include "brim.name" . }}-picker{{- end -}}

{{- /* Of the metrics of all replicas, and of the gateway's: one of a kind in the whole cluster. */ -}}
{{- define "brim.fleetJob" -}}{{ .Release.Namespace }}/{{ include "brim.triton" . }}{{- end -}}
{{- define "brim.gatewayJob" -}}{{ .Release.Namespace }}/{{ include "brim.gateway" . }}{{- end -}}

{{- /* Called with a list: the root, and the name of the part. */ -}}
{{- define "brim.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "brim.labels" -}}
{{ include "brim.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{- define "brim.exporterJob" -}}{{ .Release.Namespace }}/{{ include "brim.name" . }}-exporter{{- end -}}

{{- /* A page of what its neighbour in the pod does not tell Prometheus itself. Called with a list: the root, and what to ask. */ -}}
{{- define "brim.exporter" -}}
- name: exporter
  image: {{ include "brim.image" (index . 0).Values.tools.image }}
  imagePullPolicy: {{ (index . 0).Values.tools.image.pullPolicy }}
  command: [brim, exporter]
  args: [{{ index . 1 }}, --host=0.0.0.0, --port=9100]
  ports:
    - {name: exporter, containerPort: 9100}
  livenessProbe:
    httpGet: {path: /metrics, port: exporter}
    initialDelaySeconds: 10
    periodSeconds: 15
    timeoutSeconds: 10
  env:
    - {name: HOME, value: /tmp}
  securityContext: {{- include "brim.containerSecurity" (index . 0) | nindent 4 }}
  resources:
    requests: {cpu: 20m, memory: 96Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: scratch, mountPath: /tmp}
{{- end -}}

{{- /* The models that are loaded: a native profile's front has the model that runs its batches beside it. */ -}}
{{- define "brim.loaded" -}}
{{- $loaded := list -}}
{{- range .Values.models -}}
{{- if has $.Values.profile (list "onnx-gpu" "tensorrt") -}}{{- $loaded = append $loaded (printf "%s-native" .) -}}{{- end -}}
{{- $loaded = append $loaded . -}}
{{- end -}}
{{- $loaded | toJson -}}
{{- end -}}

{{- /* Whether the server's Python needs Brim: not where NVIDIA's own backend answers callers. */ -}}
{{- define "brim.hasAdapters" -}}{{ if ne .Values.profile "vllm" }}yes{{ end }}{{- end -}}

{{- define "brim.image" -}}{{ printf "%s:%s" .repository .tag }}{{- end -}}

{{- define "brim.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "brim.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* The gateway's configuration, with the release's picker in the place of the generated one's. */ -}}
{{- define "brim.envoy" -}}
{{- $kind := ternary "vllm" "default" (eq .Values.profile "vllm") -}}
{{- $given := .Values.gateway.config | default (.Files.Get (printf "files/envoy-%s-%s.json" $kind .Values.picker.kind)) -}}
{{- $given | replace "\"address\": \"picker\"" (printf "\"address\": %q" (include "brim.picker" .)) -}}
{{- end -}}

{{- define "brim.priorityClass" -}}
{{- with .Values.priorityClass -}}
{{- if .create -}}{{ $.Release.Namespace }}-{{ include "brim.name" $ }}{{- else -}}{{ .name }}{{- end -}}
{{- end -}}
{{- end -}}
