{{- define "kip.affinity" -}}
{{- $affinity := deepCopy (.Values.affinity | default dict) -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default (dict "nodeSelectorTerms" (list dict)) -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms -}}
  {{- $not := dict "key" "type" "operator" "NotIn" "values" (list "virtual-kubelet") -}}
  {{- $terms = append $terms (set (deepCopy .) "matchExpressions" (append (.matchExpressions | default list) $not)) -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- toYaml $affinity -}}
{{- end -}}

{{- define "kip.spread" -}}
{{- if kindIs "slice" .Values.topologySpreadConstraints -}}
{{- with .Values.topologySpreadConstraints }}{{ toYaml . }}{{ end -}}
{{- else if gt (include "kip.replicas" . | int) 1 -}}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "kip.selector" $ | nindent 6 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kip.podSecurity" -}}
{{- if include "kip.onHost" . -}}
runAsUser: 0
{{- else -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- end -}}

{{- define "kip.containerSecurity" -}}
{{- if include "kip.onHost" . -}}
privileged: true
{{- else -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
{{- end -}}

{{- define "kip.args" -}}
- --provider-config=/etc/kip/config/provider.yaml
- --nodename={{ include "kip.nodeName" . }}
- --provisioner-account={{ .Release.Namespace }}/{{ include "kip.provisioner" . }}
- --kubelet-port={{ include "kip.kubeletPort" . }}
- --webhook-port={{ ternary .Values.webhook.port 0 .Values.webhook.enabled }}
- --metrics-addr=:{{ .Values.metrics.port }}
{{- if .Values.metrics.certSecret }}
- --metrics-cert-file=/etc/kip/metrics/tls.crt
- --metrics-key-file=/etc/kip/metrics/tls.key
{{- end }}
{{- with .Values.metrics.audience }}
- --metrics-audience={{ . }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "kip.env" -}}
- name: VKUBELET_POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIPs
- name: VKUBELET_TAINT_KEY
  value: {{ .Values.taint.key | quote }}
- name: VKUBELET_TAINT_VALUE
  value: {{ .Values.taint.value | quote }}
- name: VKUBELET_TAINT_EFFECT
  value: {{ .Values.taint.effect | quote }}
- name: KIP_SOCKET
  value: {{ include "kip.dataDir" . }}/kip.sock
{{- if include "kip.servingSecret" . }}
- name: APISERVER_CERT_LOCATION
  value: /etc/kip/serving/tls.crt
- name: APISERVER_KEY_LOCATION
  value: /etc/kip/serving/tls.key
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kip.mounts" -}}
- name: config
  mountPath: /etc/kip/config
  readOnly: true
{{- if include "kip.onHost" . }}
- name: host
  mountPath: {{ .Values.host.dir }}
- name: cgroup
  mountPath: /sys/fs/cgroup
{{- end }}
- name: data
  mountPath: {{ include "kip.dataDir" . }}
- name: tmp
  mountPath: /tmp
{{- if .Values.cloudInit }}
- name: cloud-init
  mountPath: /etc/kip/cloud-init
  readOnly: true
{{- end }}
{{- if include "kip.servingSecret" . }}
- name: serving
  mountPath: /etc/kip/serving
  readOnly: true
{{- end }}
{{- if .Values.metrics.certSecret }}
- name: metrics
  mountPath: /etc/kip/metrics
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Whether the claim comes from the StatefulSet. */ -}}
{{- define "kip.claimTemplate" -}}
{{- if and .Values.persistence.enabled (eq (include "kip.kind" .) "StatefulSet") (not (include "kip.external" .)) -}}true{{- end -}}
{{- end -}}

{{- define "kip.volumes" -}}
- name: config
  configMap:
    name: {{ include "kip.configMap" . }}
- name: tmp
  emptyDir: {}
{{- if include "kip.onHost" . }}
- name: host
  hostPath:
    path: {{ .Values.host.dir }}
    type: DirectoryOrCreate
# Else a container on a host with cgroup v1 is shown its own cgroup as the whole, and the cells, which are in there then, end with it.
- name: cgroup
  hostPath:
    path: /sys/fs/cgroup
    type: Directory
{{- end }}
{{- if include "kip.claimTemplate" . }}
{{- else if or (include "kip.external" .) (not .Values.persistence.enabled) }}
- name: data
  emptyDir: {}
{{- else }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.persistence.existingClaim | default (printf "data-%s" (include "kip.fullname" .)) }}
{{- end }}
{{- if .Values.cloudInit }}
- name: cloud-init
  secret:
    secretName: {{ include "kip.fullname" . }}-cloud-init
    defaultMode: 0440
{{- end }}
{{- with include "kip.servingSecret" . }}
- name: serving
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.metrics.certSecret }}
- name: metrics
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kip.claim" -}}
{{- with .Values.persistence -}}
accessModes: {{- toYaml .accessModes | nindent 2 }}
{{- if not (kindIs "invalid" .storageClassName) }}
storageClassName: {{ .storageClassName | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .size }}
{{- end -}}
{{- end -}}

{{- define "kip.pod" -}}
metadata:
  labels:
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include "kip.selector" . | nindent 4 }}
    app.kubernetes.io/name: kip
  {{- $notes := .Values.podAnnotations | default dict }}
  {{- if not .Values.existingConfigMap }}
  {{- $notes = set (deepCopy $notes) "checksum/config" (include "kip.provider" . | sha256sum) }}
  {{- end }}
  {{- with .Values.credentials.data }}
  {{- $notes = set (deepCopy $notes) "checksum/credentials" (toJson . | sha256sum) }}
  {{- end }}
  {{- with $notes }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "kip.account" . }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if include "kip.hostNetwork" . }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- if include "kip.onHost" . }}
  # Else the cells, which are processes, would end with the container, and Kip knows them by the host's numbers.
  hostPID: true
  {{- end }}
  securityContext: {{- include "kip.podSecurity" . | nindent 4 }}
  {{- $selector := .Values.nodeSelector | default dict }}
  {{- with .Values.host.name }}
  {{- $selector = set (deepCopy $selector) "kubernetes.io/hostname" . }}
  {{- end }}
  {{- with $selector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  affinity: {{- include "kip.affinity" . | nindent 4 }}
  {{- with include "kip.spread" . }}
  topologySpreadConstraints: {{- . | trim | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: kip
      image: {{ include "kip.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # The pod's status then has the end of Kip's log, which says why Kip ended.
      terminationMessagePolicy: FallbackToLogsOnError
      args: {{- include "kip.args" . | nindent 8 }}
      env: {{- include "kip.env" . | nindent 8 }}
      {{- with include "kip.credentials" . }}
      envFrom:
        - secretRef:
            name: {{ . }}
      {{- end }}
      ports:
        - name: kubelet
          containerPort: {{ include "kip.kubeletPort" . }}
        - name: metrics
          containerPort: {{ .Values.metrics.port }}
        {{- if .Values.webhook.enabled }}
        - name: webhook
          containerPort: {{ .Values.webhook.port }}
        {{- end }}
      # A store with a long log takes a minute or two to open.
      startupProbe:
        httpGet: {path: /healthz, port: metrics, scheme: HTTPS}
        timeoutSeconds: 3
        failureThreshold: 30
      livenessProbe:
        httpGet: {path: /healthz, port: metrics, scheme: HTTPS}
        timeoutSeconds: 3
      readinessProbe:
        httpGet: {path: /readyz, port: metrics, scheme: HTTPS}
        timeoutSeconds: 3
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext: {{- include "kip.containerSecurity" . | nindent 8 }}
      volumeMounts: {{- include "kip.mounts" . | nindent 8 }}
  volumes: {{- include "kip.volumes" . | nindent 4 }}
{{- end -}}
