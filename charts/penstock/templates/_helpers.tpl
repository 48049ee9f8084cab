{{/* Name of everything in the release's namespace. */}}
{{- define "penstock.name" -}}
{{- if contains "penstock" .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-penstock-operator" .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of what belongs to no namespace: two releases of one name must not meet. */}}
{{- define "penstock.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "penstock.name" .) -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: penstock
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "penstock.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- printf "%s%s%s" .Values.image.repository (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end -}}

{{- define "penstock.jobImage" -}}
{{- $beside := regexReplaceAll "[^/]+$" .Values.image.repository "penstock" -}}
{{- .Values.jobImage | default (printf "%s:%s" $beside .Chart.AppVersion) -}}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "penstock.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* All that the controller may do in a namespace that it watches; docs/kubernetes.md has it as a table. */}}
{{- define "penstock.rules" -}}
- apiGroups: [penstock.dev]
  resources: [flowjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [penstock.dev]
  resources: [flowsavepoints]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [penstock.dev]
  resources: [flowjobs/status, flowsavepoints/status]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end -}}
