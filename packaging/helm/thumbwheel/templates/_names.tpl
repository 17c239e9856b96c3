{{- define "thumbwheel.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "thumbwheel.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "thumbwheel.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "thumbwheel.labels" -}}
{{ include "thumbwheel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The server answers under its own names alone where `gateway.hosts` is set; loopback is one. */ -}}
{{- define "thumbwheel.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  httpHeaders:
    - name: Host
      value: localhost
{{- end -}}

{{- define "thumbwheel.environment" -}}
- name: THUMBWHEEL_HOME
  value: /data/home
{{- if .Values.database.existingSecret }}
- name: THUMBWHEEL_DATABASE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end }}
{{- if .Values.cluster.existingSecret }}
- name: THUMBWHEEL_CLUSTER_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.cluster.existingSecret }}
      key: {{ .Values.cluster.key }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "thumbwheel.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
