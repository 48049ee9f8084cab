{{- /* What everything of a release is called: its name, with "penstock" in it. */ -}}
{{- define "penstock.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "penstock" $name) }}{{ $name = printf "%s-penstock" $name }}{{ end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "penstock.account" -}}
{{- .Values.serviceAccount.name | default (include "penstock.name" .) -}}
{{- end -}}

{{- define "penstock.operatorImage" -}}
{{ .Values.image.operator.repository }}:{{ .Values.image.operator.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "penstock.jobImage" -}}
{{ .Values.image.job.repository }}:{{ .Values.image.job.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* As the Pod Security Standard "restricted" asks, and a read-only root on top. */ -}}
{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The release that brought a CustomResourceDefinition, as namespace/name; empty when that is ours, or nobody. */ -}}
{{- define "penstock.crdOwner" -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .crd -}}
{{- if $there -}}
{{- $annotations := $there.metadata.annotations | default dict -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if ne $owner (printf "%s/%s" .root.Release.Namespace .root.Release.Name) -}}{{ $owner }}{{- end -}}
{{- end -}}
{{- end -}}
