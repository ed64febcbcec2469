{{- /* A Job of kipctl that Helm runs, with an account and rights of its own. */ -}}
{{- define "kip.hookMeta" -}}
labels: {{- include "kip.labels" .root | nindent 2 }}
annotations:
  helm.sh/hook: {{ .hook }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
  helm.sh/hook-output-log-policy: hook-failed
{{- end -}}

{{- define "kip.hookRules" -}}
{{- if eq .what "crd-update" -}}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [create]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [cells.kip.elotl.co]
  verbs: [get, update, patch]
{{- else -}}
- apiGroups: [""]
  resources: [nodes]
  resourceNames: {{- (include "kip.nodes" .root | fromJson).names | toYaml | nindent 2 }}
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [kip.elotl.co]
  resources: [cells]
  verbs: [list]
{{- end -}}
{{- end -}}

{{- /* Rights of the hook in the release's namespace: kipctl cleanup runs in Kip's pod. */ -}}
{{- define "kip.hookExec" -}}
{{- $name := printf "%s-%s" (include "kip.fullname" .root) .what }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "kip.hookMeta" (set . "weight" -2) | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [pods/exec]
    {{- if eq (include "kip.kind" .root) "StatefulSet" }}
    resourceNames:
      {{- range until (include "kip.replicas" .root | int) }}
      - {{ include "kip.fullname" $.root }}-{{ . }}
      {{- end }}
    {{- end }}
    verbs: [get, create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "kip.hookMeta" (set . "weight" -1) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{- define "kip.hook" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "kip.fullname" $root) .what -}}
{{- $global := printf "kip-%s.%s" .what (include "kip.nodeName" $root) }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "kip.hookMeta" (set . "weight" -2) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $global }}
  {{- include "kip.hookMeta" (set . "weight" -2) | nindent 2 }}
rules: {{- include "kip.hookRules" . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $global }}
  {{- include "kip.hookMeta" (set . "weight" -1) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $global }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $root.Release.Namespace }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "kip.hookMeta" (set . "weight" 0) | nindent 2 }}
spec:
  backoffLimit: 0
  template:
    metadata:
      labels: {{- include "kip.labels" $root | nindent 8 }}
    spec:
      serviceAccountName: {{ $name }}
      restartPolicy: Never
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity: {{- include "kip.affinity" $root | nindent 8 }}
      {{- with $root.Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: kipctl
          image: {{ include "kip.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [/kipctl]
          args: {{- toYaml .args | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
{{- end -}}
