{{/* The template of a pod: dict "root" $ "role" "node" "headless" NAME. */}}
{{- define "grebe.pod" -}}
{{- $v := .root.Values -}}
{{- $me := index $v .role -}}
{{- $full := include "grebe.fullname" .root -}}
metadata:
  labels:
    {{- include "grebe.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  annotations:
    kubectl.kubernetes.io/default-container: grebe
    # another configuration is another pod
    grebe/config: {{ include "grebe.config" (dict "root" .root "role" .role) | sha256sum }}
    {{- with $me.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "grebe.serviceAccount" .root }}
  automountServiceAccountToken: {{ eq $v.cluster.coordinator "kubernetes" }}
  enableServiceLinks: false # its variables look like configuration
  terminationGracePeriodSeconds: {{ include "grebe.grace" . }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $me.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $me.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $me.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $me.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $me.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with $me.topologyKeys }}
  topologySpreadConstraints:
    {{- range . }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "grebe.selector" $.root | nindent 10 }}
          app.kubernetes.io/component: {{ $.role }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: grebe
      image: "{{ $v.image.repository }}:{{ default .root.Chart.AppVersion $v.image.tag }}"
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: ["serve", "-c", "/etc/grebe/config/{{ .role }}.yaml", "--log-format", "json"]
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: GREBE_CLUSTER_NODE, value: $(POD_NAME)}
        {{- if .headless }}
        - {name: GREBE_CLUSTER_ADVERTISE, value: "$(POD_NAME).{{ .headless }}.{{ .root.Release.Namespace }}.svc:7070"}
        - {name: GREBE_CLUSTER_API, value: "$(POD_NAME).{{ .headless }}.{{ .root.Release.Namespace }}.svc:8080"}
        {{- else }}
        - {name: GREBE_CLUSTER_ADVERTISE, value: "$(POD_IP):7070"}
        - {name: GREBE_CLUSTER_API, value: "$(POD_IP):8080"}
        {{- end }}
        {{- if eq $v.cluster.tls.mode "secret" }}
        - {name: GREBE_CLUSTER_TLS_CERT, value: /etc/grebe/cluster/$(POD_NAME).crt}
        - {name: GREBE_CLUSTER_TLS_KEY, value: /etc/grebe/cluster/$(POD_NAME).key}
        {{- end }}
        {{- with $me.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: admin, containerPort: 8081}
        - {name: grpc, containerPort: 8082}
        - {name: peers, containerPort: 7070}
      # The admin listener has the same answers, without the clients' TLS.
      startupProbe:
        httpGet: {path: /v2/health/live, port: admin}
        periodSeconds: 5
        failureThreshold: {{ max 1 (div (add $me.startupSeconds 4) 5) }}
      readinessProbe:
        httpGet: {path: /v2/health/ready, port: admin}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /v2/health/live, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      lifecycle:
        preStop:
          exec:
            command: {{ include "grebe.drain" .root }}
      {{- $resources := deepCopy $me.resources }}
      {{- if and (eq .role "node") (gt (int $v.node.gpu.count) 0) }}
      {{- $_ := set $resources "limits" (merge (dict $v.node.gpu.resource (int $v.node.gpu.count)) (default dict $resources.limits)) }}
      {{- end }}
      resources: {{ toYaml $resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/grebe/config, readOnly: true}
        {{- if ne $v.cluster.tls.mode "none" }}
        - {name: cluster-tls, mountPath: /etc/grebe/cluster, readOnly: true}
        {{- end }}
        {{- if $v.auth.keysSecret }}
        - {name: keys, mountPath: /etc/grebe/keys, readOnly: true}
        {{- end }}
        {{- if $v.clientTLS.secretName }}
        - {name: client-tls, mountPath: /etc/grebe/tls, readOnly: true}
        {{- end }}
        - {name: models, mountPath: /models, readOnly: true}
        - {name: data, mountPath: /var/lib/grebe}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: config
      configMap: {name: {{ $full }}}
    {{- if eq $v.cluster.tls.mode "certManager" }}
    - name: cluster-tls
      csi:
        driver: csi.cert-manager.io
        readOnly: true
        volumeAttributes:
          csi.cert-manager.io/issuer-name: {{ include "grebe.issuer" .root }}
          csi.cert-manager.io/issuer-kind: {{ ternary "Issuer" $v.cluster.tls.issuer.kind $v.cluster.tls.issuer.create }}
          csi.cert-manager.io/issuer-group: {{ ternary "cert-manager.io" $v.cluster.tls.issuer.group $v.cluster.tls.issuer.create }}
          csi.cert-manager.io/common-name: ${POD_NAME}
          csi.cert-manager.io/uri-sans: grebe://{{ include "grebe.cluster" .root }}/${POD_NAME}
          csi.cert-manager.io/duration: {{ $v.cluster.tls.duration }}
          csi.cert-manager.io/key-usages: digital signature,key encipherment,server auth,client auth
          csi.cert-manager.io/fs-group: "10001"
    {{- else if eq $v.cluster.tls.mode "secret" }}
    - name: cluster-tls
      secret: {secretName: {{ $v.cluster.tls.secretName }}, defaultMode: 0440}
    {{- end }}
    {{- with $v.auth.keysSecret }}
    - name: keys
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with $v.clientTLS.secretName }}
    - name: client-tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    - name: models
      {{- if $v.models.volume }}
      {{- toYaml $v.models.volume | nindent 6 }}
      {{- else }}
      persistentVolumeClaim: {claimName: {{ required "models: name a claimName or a volume" $v.models.claimName }}, readOnly: true}
      {{- end }}
    {{- if not .headless }}
    - name: data
      emptyDir: {sizeLimit: {{ $me.storage.size }}}
    {{- end }}
    - name: tmp
      emptyDir: {}
{{- end -}}

{{/* The command that drains a pod. The image has no shell. */}}
{{- define "grebe.drain" -}}
["/usr/local/bin/grebe", "cluster", "leave", "--timeout", "{{ int .Values.preStopSeconds }}s", "--server", "http://127.0.0.1:8081"]
{{- end -}}

{{/* A StatefulSet of members with disks: dict "root" $ "role" "node". */}}
{{- define "grebe.set" -}}
{{- $me := index .root.Values .role -}}
{{- $name := printf "%s-%s" (include "grebe.fullname" .root) .role -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
    {{- include "grebe.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  serviceName: {{ $name }}
  replicas: {{ $me.replicas }}
  podManagementPolicy: Parallel # members wait for each other
  updateStrategy: {type: RollingUpdate}
  minReadySeconds: {{ $me.readySeconds }}
  selector:
    matchLabels:
      {{- include "grebe.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template: {{ include "grebe.pod" (dict "root" .root "role" .role "headless" $name) | nindent 4 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [{{ $me.storage.accessMode }}]
        {{- with $me.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ $me.storage.size }}}}
---
# Gives each pod its name. Members reach each other before they are ready.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels:
    {{- include "grebe.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "grebe.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  ports:
    - {name: peers, port: 7070, targetPort: peers}
    - {name: http, port: 8080, targetPort: http}
---
{{ include "grebe.budget" . }}
{{- end -}}

{{/* A PodDisruptionBudget: dict "root" $ "role" "node". */}}
{{- define "grebe.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "grebe.fullname" .root }}-{{ .role }}
  labels:
    {{- include "grebe.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  maxUnavailable: {{ (index .root.Values .role).maxUnavailable }}
  selector:
    matchLabels:
      {{- include "grebe.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
{{- end -}}
