{{/* Names, labels and the image, used by every template. */}}

{{- define "berth.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of one part. Call with (dict "root" $ "part" "operator"). */}}
{{- define "berth.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/* The recommended labels of an object of one part. Call with (dict "root" $ "part" "operator"). */}}
{{- define "berth.labels" -}}
{{ include "berth.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: berth
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The image: repository, then the tag, then the digest. */}}
{{- define "berth.image" -}}
{{- $tag := .Values.image.tag | default (ternary "" .Chart.AppVersion (ne .Values.image.digest "")) -}}
{{- .Values.image.repository -}}
{{- with $tag }}:{{ . }}{{ end -}}
{{- with .Values.image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Base of the URLs that clients use. */}}
{{- define "berth.gatewayUrl" -}}
{{- .Values.gateway.url | default (printf "http://%s-gateway.%s.svc:%v" (include "berth.fullname" .) .Release.Namespace .Values.gateway.service.port) -}}
{{- end -}}

{{/* What Pod Security `restricted` asks of a pod. */}}
{{- define "berth.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* What Pod Security `restricted` asks of a container, and a root file system that nothing can write. */}}
{{- define "berth.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Health and metrics are on a port of their own, plain HTTP, in every pod. */}}
{{- define "berth.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  failureThreshold: 3
{{- end -}}

{{/*
Where the pods of one part may run. Call with (dict "root" $ "part" "operator"). Without constraints of the user's own, replicas
go to different nodes where they can; an update counts only the new pods.
*/}}
{{- define "berth.scheduling" -}}
{{- $values := index .root.Values .part -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if kindIs "slice" $values.topologySpreadConstraints }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "berth.selector" . | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Of several replicas, one may be taken away at a time. Call with (dict "root" $ "part" "operator"). */}}
{{- define "berth.podDisruptionBudget" -}}
{{- $values := index .root.Values .part -}}
{{- if and $values.podDisruptionBudget.enabled (gt (int $values.replicas) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "berth.fullname" .root }}-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "berth.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # A replica that is not ready serves nobody, so that a drain need not wait for it.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "berth.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* Labels by which the policies of pools know operator and gateways, as key=value,key=value. All pods of the release have them. */}}
{{- define "berth.peerLabels" -}}
app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }}
{{- end -}}

{{/* Who reaches health and metrics. The kubelet of a pod's own node always does. */}}
{{- define "berth.metricsIngress" -}}
- ports:
    - {protocol: TCP, port: 8081}
  {{- with .Values.networkPolicy.metricsFrom }}
  from: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Annotations of an object of the uninstall, with its weight. It goes when all went well. */}}
{{- define "berth.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Annotations of an object of `helm test`, with its weight. It goes when all went well. */}}
{{- define "berth.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
