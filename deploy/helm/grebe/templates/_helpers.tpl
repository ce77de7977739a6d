{{- define "grebe.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "grebe.cluster" -}}
{{- default (include "grebe.fullname" .) .Values.cluster.name -}}
{{- end -}}

{{/* Labels that select all pods of the release. */}}
{{- define "grebe.selector" -}}
app.kubernetes.io/name: grebe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "grebe.labels" -}}
{{ include "grebe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "grebe.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "grebe.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "grebe.issuer" -}}
{{- $i := .Values.cluster.tls.issuer -}}
{{- if $i.create -}}
{{- include "grebe.fullname" . }}-members
{{- else -}}
{{- required "cluster.tls.issuer.name: name an issuer of cert-manager, or set create" $i.name -}}
{{- end -}}
{{- end -}}

{{/* Problems of values that a schema cannot tell. */}}
{{- define "grebe.check" -}}
{{- $v := .Values -}}
{{- if and (eq $v.cluster.tls.mode "secret") (gt (int $v.router.replicas) 0) -}}
{{- fail "cluster.tls.mode secret: the certificate of a member names its pod, and the pods of a Deployment have random names. Use certManager, or set router.replicas to 0: nodes route too" -}}
{{- end -}}
{{- if and (eq $v.cluster.tls.mode "secret") (not $v.cluster.tls.secretName) -}}
{{- fail "cluster.tls.secretName: name the secret that has ca.crt, and POD.crt and POD.key of each pod" -}}
{{- end -}}
{{- if and $v.clientTLS.clientCA (not $v.clientTLS.secretName) -}}
{{- fail "clientTLS.clientCA: needs clientTLS.secretName" -}}
{{- end -}}
{{- range $role := list "node" "router" "kv" -}}
{{- $config := mergeOverwrite (deepCopy $v.config) (deepCopy (index $v $role).config) -}}
{{- range list "listen" "admin_listen" "grpc_listen" "data_dir" "hosts" "tls" "auth" "cluster" -}}
{{- if hasKey $config . -}}
{{- fail (printf "config.%s: the chart sets it; see cluster, auth, clientTLS and service.hosts" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* grebe.yaml of a role: dict "root" $ "role" "node". */}}
{{- define "grebe.config" -}}
{{- $v := .root.Values -}}
{{- $full := include "grebe.fullname" .root -}}
{{- $ns := .root.Release.Namespace -}}
{{- $c := mergeOverwrite (deepCopy $v.config) (deepCopy (index $v .role).config) -}}
{{- $names := list $full (printf "%s.%s" $full $ns) (printf "%s.%s.svc" $full $ns) (printf "%s.%s.svc.cluster.local" $full $ns) -}}
{{- $roles := list .role -}}
{{- if and (eq .role "node") (eq (int $v.router.replicas) 0) -}}
{{- $roles = list "node" "router" -}}
{{- end -}}
{{- $cluster := dict "name" (include "grebe.cluster" .root) "coordinator" $v.cluster.coordinator "routing" $v.cluster.routing "listen" "0.0.0.0:7070" "roles" $roles -}}
{{- if eq $v.cluster.tls.mode "none" -}}
{{- $_ := set $cluster "insecure" true -}}
{{- else if eq $v.cluster.tls.mode "certManager" -}}
{{- $_ := set $cluster "tls" (dict "cert" "/etc/grebe/cluster/tls.crt" "key" "/etc/grebe/cluster/tls.key" "ca" "/etc/grebe/cluster/ca.crt") -}}
{{- else -}}
{{- $_ := set $cluster "tls" (dict "ca" "/etc/grebe/cluster/ca.crt") -}}
{{- end -}}
{{- $_ := set $c "listen" "0.0.0.0:8080" -}}
{{- $_ := set $c "grpc_listen" "0.0.0.0:8082" -}}
{{- $_ := set $c "admin_listen" "0.0.0.0:8081" -}}
{{- $_ := set $c "data_dir" "/var/lib/grebe/data" -}}
{{- $_ := set $c "hosts" (concat $names $v.service.hosts) -}}
{{- $_ := set $c "cluster" $cluster -}}
{{- if and (eq .role "node") (gt (int $v.node.gpu.count) 0) (not (hasKey $c "device")) -}}
{{- $_ := set $c "device" "cuda" -}}
{{- end -}}
{{- if $v.auth.keysSecret -}}
{{- $_ := set $c "auth" (dict "keys" "/etc/grebe/keys/keys.yaml") -}}
{{- end -}}
{{- if $v.clientTLS.secretName -}}
{{- $tls := dict "cert" "/etc/grebe/tls/tls.crt" "key" "/etc/grebe/tls/tls.key" -}}
{{- if $v.clientTLS.clientCA -}}
{{- $_ := set $tls "client_ca" "/etc/grebe/tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $c "tls" $tls -}}
{{- end -}}
{{- toYaml $c -}}
{{- end -}}

{{/* Seconds that a pod has to stop: drain, drain_ms, shutdown_ms, and ten to close its files. */}}
{{- define "grebe.grace" -}}
{{- $c := mergeOverwrite (deepCopy .root.Values.config) (deepCopy (index .root.Values .role).config) -}}
{{- $l := default dict $c.limits -}}
{{- $ms := add (dig "drain_ms" 0 $l | int) (dig "shutdown_ms" 10000 $l | int) -}}
{{- add (int .root.Values.preStopSeconds) (div (add $ms 999) 1000) 10 -}}
{{- end -}}
