{{- /* By what the API server asks Kip about pods that profiles may choose (docs/profiles.md), in CEL. */ -}}

{{- /* A pod selects Kip's nodes. */ -}}
{{- define "kip.selectsKip" -}}
object.spec.?nodeSelector[?'type'].orValue('') == 'virtual-kubelet' ||
(object.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.hasValue() &&
object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.all(t,
  t.?matchExpressions.orValue([]).exists(e, e.key == 'type' && e.operator == 'In' && e.?values.orValue([]) == ['virtual-kubelet'])))
{{- end -}}

{{- /* The profiles, as a JSON object. */ -}}
{{- define "kip.profiles" -}}
{{- dict "list" (dig "admission" "profiles" list .Values.config | default list) | toJson -}}
{{- end -}}

{{- /* The namespaces whose pods a profile chooses only if it names them, as a JSON object. */ -}}
{{- define "kip.systemNamespaces" -}}
{{- dict "list" (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace | uniq) | toJson -}}
{{- end -}}

{{- /* What a profile chooses, or more. Labels of namespaces, amounts, and a false gpu are Kip's to compare. */ -}}
{{- define "kip.profileMatches" -}}
{{- $all := list -}}
{{- with .namespaces -}}
  {{- $any := list -}}
  {{- range . -}}
    {{- if hasSuffix "*" . -}}
      {{- $any = append $any (printf "request.namespace.startsWith(%s)" (trimSuffix "*" . | toJson)) -}}
    {{- else -}}
      {{- $any = append $any (printf "request.namespace == %s" (toJson .)) -}}
    {{- end -}}
  {{- end -}}
  {{- $all = append $all (printf "(%s)" (join " || " $any)) -}}
{{- end -}}
{{- with .podSelector -}}
  {{- range $key, $value := .matchLabels -}}
    {{- $all = append $all (printf "object.metadata.?labels[?%s].orValue('') == %s" (toJson $key) (toJson $value)) -}}
  {{- end -}}
  {{- range .matchExpressions -}}
    {{- $has := printf "object.metadata.?labels[?%s]" (toJson .key) -}}
    {{- if eq .operator "In" -}}
      {{- $all = append $all (printf "%s.orValue('') in %s" $has (toJson .values)) -}}
    {{- else if eq .operator "NotIn" -}}
      {{- $all = append $all (printf "!(%s.hasValue() && %s.value() in %s)" $has $has (toJson .values)) -}}
    {{- else if eq .operator "Exists" -}}
      {{- $all = append $all (printf "%s.hasValue()" $has) -}}
    {{- else if eq .operator "DoesNotExist" -}}
      {{- $all = append $all (printf "!%s.hasValue()" $has) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with .serviceAccounts -}}
  {{- $all = append $all (printf "object.spec.?serviceAccountName.orValue('') in %s" (toJson .)) -}}
{{- end -}}
{{- $controlledBy := "object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) && o.kind %s)" -}}
{{- with .ownerKinds -}}
  {{- $all = append $all (printf $controlledBy (printf "in %s" (toJson .))) -}}
{{- else -}}
  {{- $all = append $all (printf "!%s" (printf $controlledBy "== 'DaemonSet'")) -}}
{{- end -}}
{{- $requests := "(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, c.?resources.?requests.orValue({}).exists(r, %s))" -}}
{{- if eq (toString .gpu) "true" -}}
  {{- $all = append $all (printf $requests "r.startsWith('nvidia.com/') || r.endsWith('/gpu')") -}}
{{- end -}}
{{- range .resources -}}
  {{- $all = append $all (printf $requests (printf "r == %s" (toJson .))) -}}
{{- end -}}
{{- if not .mode -}}
  {{- $all = append $all (printf "(%s)" (include "kip.selectsKip" . | replace "\n" " ")) -}}
{{- end -}}
({{ join " && " $all }})
{{- end -}}

{{- /* The namespaces that the pods of profiles are in, or more: a namespaceSelector. */ -}}
{{- define "kip.profileNamespaces" -}}
{{- $profiles := (include "kip.profiles" . | fromJson).list -}}
{{- if .Values.webhook.profiles -}}{{- $profiles = list -}}{{- end -}}
{{- $named := list -}}
{{- $all := .Values.webhook.profiles -}}
{{- range $profiles -}}
  {{- if not .namespaces -}}{{- $all = true -}}{{- end -}}
  {{- range .namespaces -}}
    {{- if hasSuffix "*" . -}}{{- $all = true -}}{{- else -}}{{- $named = append $named . -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $expressions := list -}}
{{- if $all -}}
  {{- $others := list -}}
  {{- range (include "kip.systemNamespaces" . | fromJson).list -}}
    {{- if not (has . $named) -}}{{- $others = append $others . -}}{{- end -}}
  {{- end -}}
  {{- if $others -}}
    {{- $expressions = append $expressions (dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" $others) -}}
  {{- end -}}
{{- else -}}
  {{- $expressions = append $expressions (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" (uniq $named)) -}}
{{- end -}}
{{- $selector := dict -}}
{{- if eq (len $profiles) 1 -}}
  {{- with (first $profiles).namespaceSelector -}}
    {{- with .matchLabels -}}{{- $_ := set $selector "matchLabels" . -}}{{- end -}}
    {{- range .matchExpressions -}}{{- $expressions = append $expressions . -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- $_ := set $selector "matchExpressions" $expressions -}}
{{- toYaml $selector -}}
{{- end -}}

{{- /* Whether pods of a profile get a cost of deletion on Kip's nodes, or may. */ -}}
{{- define "kip.profileCosts" -}}
{{- if .Values.webhook.profiles -}}true{{- end -}}
{{- range (include "kip.profiles" . | fromJson).list -}}
  {{- $cost := ternary -1 0 (eq (toString .mode) "burst") -}}
  {{- if not (kindIs "invalid" .podDeletionCost) -}}{{- $cost = int .podDeletionCost -}}{{- end -}}
  {{- if ne $cost 0 -}}true{{- end -}}
{{- end -}}
{{- end -}}
