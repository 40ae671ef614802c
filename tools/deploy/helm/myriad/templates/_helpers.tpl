{{- define "myriad.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "myriad.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "myriad.labels" -}}
{{ include "myriad.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* What can't be. */ -}}
{{- define "myriad.check" -}}
{{- $pods := ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled -}}
{{- $joined := or .Values.cluster.enabled .Values.nats.urlsSecret -}}
{{- if not (has .Values.mode (list "hub" "serve")) }}{{ fail (printf "mode is %q; expected hub or serve" .Values.mode) }}{{ end -}}
{{- if and $joined (ne .Values.mode "hub") }}{{ fail "cluster or nats is set, and mode is serve; expected mode hub" }}{{ end -}}
{{- if and .Values.cluster.enabled .Values.nats.urlsSecret }}{{ fail "cluster.enabled and nats.urlsSecret are both set; expected one" }}{{ end -}}
{{- if and .Values.cluster.enabled (not .Values.cluster.secret) }}{{ fail "cluster.secret is missing; expected the name of a Secret with the key secret" }}{{ end -}}
{{- if eq .Values.mode "hub" -}}
{{- if and (not .Values.hub.usersSecret) (not .Values.hub.insecure) }}{{ fail "hub.usersSecret is missing; expected the name of a Secret with users.acl, or hub.insecure=true: everybody who reaches the hub may read and publish all" }}{{ end -}}
{{- if and (gt (int $pods) 1) (not $joined) }}{{ fail "hubs of several pods know nothing of each other; expected cluster.enabled=true, nats.urlsSecret, or replicas=1 without autoscaling" }}{{ end -}}
{{- end -}}
{{- end -}}
