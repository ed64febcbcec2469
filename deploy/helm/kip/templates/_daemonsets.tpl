{{- /* By what the API server asks Kip about DaemonSets that run beside pods (docs/daemonsets.md), in CEL, as a JSON object. One of the
expressions holds for each such set, or more: labels and grants are Kip's to compare. */ -}}
{{- define "kip.setMatches" -}}
{{- $all := list -}}
{{- range dig "cells" "daemonSets" list .Values.config | default list -}}
  {{- $match := printf "request.namespace == %s" (toJson .namespace) -}}
  {{- with .name -}}{{- $match = printf "%s && object.metadata.name == %s" $match (toJson .) -}}{{- end -}}
  {{- $all = append $all (printf "(%s)" $match) -}}
{{- end -}}
{{- range dig "cells" "csiDrivers" list .Values.config | default list -}}
  {{- if eq (toString .beside) "true" -}}
    {{- $set := splitList "/" .daemonSet -}}
    {{- $all = append $all (printf "(request.namespace == %s && object.metadata.name == %s)" (first $set | toJson) (last $set | toJson)) -}}
  {{- end -}}
{{- end -}}
{{- range dig "cells" "grants" "namespaces" list .Values.config | default list -}}
  {{- if eq (toString .besidePods) "true" -}}
    {{- $all = append $all "object.spec.template.?metadata.?annotations[?'pod.elotl.co/beside-pods'].hasValue()" -}}
  {{- end -}}
{{- end -}}
{{- dict "list" (uniq $all) | toJson -}}
{{- end -}}
