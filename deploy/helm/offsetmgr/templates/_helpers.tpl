{{- define "offsetmgr.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "offsetmgr.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "offsetmgr.labels" -}}
{{ include "offsetmgr.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The service's configuration file. Other pods can reach the service: so it has TLS and identities. */}}
{{- define "offsetmgr.toml" -}}
{{- $identities := dict }}
{{- range $name, $identity := .Values.identities }}
{{- $_ := set $identities $name (merge (dict "token_file" (printf "/run/secrets/tokens/%s" $name)) $identity) }}
{{- end }}
{{- $tls := dict "certificate" "/run/secrets/tls/tls.crt" "key" "/run/secrets/tls/tls.key" }}
{{- $own := dict "listen" "0.0.0.0:8741" "tls" $tls "identities" $identities }}
{{- merge $own .Values.settings | toToml }}
{{- end }}
