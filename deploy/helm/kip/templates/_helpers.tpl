{{- /* Names. */ -}}
{{- define "kip.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "kip" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-kip" (.Release.Name | trunc 48 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "kip.account" -}}
{{- .Values.serviceAccount.name | default (include "kip.fullname" .) -}}
{{- end -}}

{{- define "kip.provisioner" -}}
{{- include "kip.account" . }}-provisioner
{{- end -}}

{{- define "kip.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "kip.account" . }}
{{- end -}}

{{- define "kip.nodeName" -}}
{{- .Values.nodeName | default (printf "%s-0" (include "kip.fullname" .)) -}}
{{- end -}}

{{- define "kip.labels" -}}
app.kubernetes.io/name: kip
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* What selects Kip's pods. */ -}}
{{- define "kip.selector" -}}
app: kip-provider
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Nodes: the highest number, and a JSON object with all names. */ -}}
{{- define "kip.nodeCount" -}}
{{- $nodes := .Values.config.nodes -}}
{{- $least := 0 -}}
{{- /* More zones than subnets of one Kip are in. */ -}}
{{- $count := 16 -}}
{{- if and $nodes (ne (toString $nodes) "zones") -}}
  {{- /* An entry keeps its number when others go, and a node that is taken out keeps its pods for a while. */ -}}
  {{- $count = 64 -}}
{{- end -}}
{{- if kindIs "slice" $nodes -}}
  {{- $least = len $nodes -}}
  {{- range $nodes -}}
    {{- if not (kindIs "invalid" .suffix) -}}
      {{- $least = max $least (int .suffix) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if kindIs "invalid" .Values.nodeCount -}}
{{- $count -}}
{{- else if lt (int .Values.nodeCount) (int $least) -}}
{{- fail (printf "nodeCount is %d, but config.nodes needs %d: set nodeCount to %d or more, or leave it out" (int .Values.nodeCount) (int $least) (int $least)) -}}
{{- else -}}
{{- int .Values.nodeCount -}}
{{- end -}}
{{- end -}}

{{- define "kip.nodes" -}}
{{- $name := include "kip.nodeName" . -}}
{{- $names := list $name -}}
{{- range untilStep 1 (add 1 (include "kip.nodeCount" . | int) | int) 1 -}}
  {{- $names = append $names (printf "%s-%d" $name .) -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{- /* The names of these nodes after a prefix, as a list in CEL. */ -}}
{{- define "kip.nodeList" -}}
{{- $names := list -}}
{{- range (include "kip.nodes" .root | fromJson).names -}}
  {{- $names = append $names (printf "'%s%s'" $.prefix .) -}}
{{- end -}}
[{{ join ", " $names }}]
{{- end -}}

{{- /* Keys of taints that Kip may change, as a JSON object. */ -}}
{{- define "kip.taints" -}}
{{- $keys := list "virtual-kubelet.io/provider" .Values.taint.key -}}
{{- if kindIs "slice" .Values.config.nodes -}}
  {{- range .Values.config.nodes -}}
    {{- range .taints -}}{{- $keys = append $keys .key -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- dict "keys" (uniq $keys) | toJson -}}
{{- end -}}

{{- /* Whether Kip uses an etcd of its user's. */ -}}
{{- define "kip.external" -}}
{{- if dig "etcd" "client" "endpoints" nil .Values.config -}}true{{- end -}}
{{- end -}}

{{- /* Whether cells are on the host that Kip runs on. */ -}}
{{- define "kip.onHost" -}}
{{- with .Values.config.cloud -}}
{{- if or (hasKey . "local") (hasKey . "qemu") -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kip.hostNetwork" -}}
{{- if or .Values.hostNetwork (include "kip.onHost" .) -}}true{{- end -}}
{{- end -}}

{{- define "kip.kind" -}}
{{- .Values.kind | default (ternary "Deployment" "StatefulSet" (eq (include "kip.external" .) "true")) -}}
{{- end -}}

{{- define "kip.replicas" -}}
{{- if kindIs "invalid" .Values.replicas -}}
{{- ternary 2 1 (and (eq (include "kip.external" .) "true") (not (include "kip.onHost" .))) -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{- define "kip.dataDir" -}}
{{- dig "etcd" "internal" "dataDir" "/opt/kip/data" .Values.config -}}
{{- end -}}

{{- define "kip.kubeletPort" -}}
{{- .Values.kubelet.port | default (ternary 10270 10250 (eq (include "kip.hostNetwork" .) "true")) -}}
{{- end -}}

{{- define "kip.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kip.configMap" -}}
{{- .Values.existingConfigMap | default (printf "%s-config" (include "kip.fullname" .)) -}}
{{- end -}}

{{- define "kip.credentials" -}}
{{- if .Values.credentials.existingSecret -}}
{{- .Values.credentials.existingSecret -}}
{{- else if .Values.credentials.data -}}
{{- include "kip.fullname" . }}-credentials
{{- end -}}
{{- end -}}

{{- define "kip.servingSecret" -}}
{{- if eq .Values.servingCertificate.source "secret" -}}
{{- .Values.servingCertificate.secretName -}}
{{- else if eq .Values.servingCertificate.source "cert-manager" -}}
{{- .Values.servingCertificate.secretName | default (printf "%s-serving" (include "kip.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- /* Whether Kip requests its serving certificate with its own service account. */ -}}
{{- define "kip.requestsAsItself" -}}
{{- with .Values.servingCertificate -}}
{{- if and (eq .source "csr") (or (eq .requester "kip") (and (not .requester) (ne .signerName "kubernetes.io/kubelet-serving"))) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* provider.yaml: the user's keys, and those that other values say. */ -}}
{{- define "kip.provider" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := mergeOverwrite $config (dict "apiVersion" "v1" "kind" "serverConfig") -}}
{{- with .Values.servingCertificate -}}
  {{- if eq .source "csr" -}}
    {{- $serving := dict "signerName" .signerName "approve" .approve -}}
    {{- if .requester -}}{{- $_ := set $serving "requester" .requester -}}{{- end -}}
    {{- $_ := set $config "servingCertificate" $serving -}}
  {{- end -}}
{{- end -}}
{{- if .Values.cloudInit -}}
  {{- $cells := $config.cells | default dict -}}
  {{- $_ := set $cells "cloudInitFile" "/etc/kip/cloud-init/cells.yaml" -}}
  {{- $_ := set $config "cells" $cells -}}
{{- end -}}
{{- /* By default provider.yaml has all in /opt/kip, which is then no folder of the host. */ -}}
{{- if and (include "kip.onHost" .) (ne .Values.host.dir "/opt/kip") -}}
  {{- range $name, $keys := $config.cloud -}}
    {{- $own := dict "stateDir" (printf "%s/%s" $.Values.host.dir $name) -}}
    {{- if eq $name "local" -}}
      {{- $_ := set $own "rootDir" (printf "%s/cell-root" $.Values.host.dir) -}}
    {{- else -}}
      {{- $_ := set $own "image" (printf "%s/image/kip-cell-amd64.qcow2" $.Values.host.dir) -}}
    {{- end -}}
    {{- $_ := set $config.cloud $name (merge (dict) ($keys | default dict) $own) -}}
  {{- end -}}
{{- end -}}
{{- $kubelet := $config.kubelet | default dict -}}
{{- if and (hasKey ($config.cloud | default dict) "aws") (not (or (hasKey $kubelet "capacity") (hasKey $kubelet "cpu") (hasKey $kubelet "memory") (hasKey $kubelet "pods"))) -}}
  {{- $_ := set $config "kubelet" (merge (dict "capacity" "auto") $kubelet) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
