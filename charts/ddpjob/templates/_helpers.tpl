{{/* Names and labels only. */}}

{{- define "ddpjob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ddpjob.operatorName" -}}
{{ include "ddpjob.fullname" . }}-operator
{{- end -}}

{{- define "ddpjob.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The operator's rights, in the cluster or in each watched namespace. */}}
{{- define "ddpjob.rules" -}}
{{ .Files.Get "files/rules.yaml" }}
{{- if ne .Values.gang.scheduler "none" }}
{{- $groups := dict "kubernetes" "scheduling.k8s.io" "volcano" "scheduling.volcano.sh" "coscheduling" "scheduling.x-k8s.io" }}
- apiGroups: [{{ get $groups .Values.gang.scheduler }}]
  resources: [podgroups] # delete: that of the attempt before
  verbs: [get, create, delete]
{{- end }}
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status] # to give quota back, and to say that all pods run
  verbs: [update]
{{- end }}
{{- end -}}

{{- define "ddpjob.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "ddpjob.labels" -}}
{{ include "ddpjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}
