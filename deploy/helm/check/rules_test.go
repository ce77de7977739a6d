package check

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"grebe/internal/config"
)

// workload is what a StatefulSet and a Deployment have in common.
type workload struct {
	name, role string
	selector   *meta.LabelSelector
	pod        core.PodTemplateSpec
	set        *apps.StatefulSet // nil: a Deployment
}

func (o *objects) workloads() (out []workload) {
	for _, s := range o.sets {
		out = append(out, workload{s.Name, s.Labels[component], s.Spec.Selector, s.Spec.Template, s})
	}
	for _, d := range o.deployments {
		out = append(out, workload{d.Name, d.Labels[component], d.Spec.Selector, d.Spec.Template, nil})
	}
	return out
}

const component = "app.kubernetes.io/component"

func (w *workload) container() *core.Container { return &w.pod.Spec.Containers[0] }

// selected returns the workloads whose pods a selector selects.
func (o *objects) selected(t *testing.T, s *meta.LabelSelector) (out []workload) {
	t.Helper()
	sel, err := meta.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range o.workloads() {
		if sel.Matches(labels.Set(w.pod.Labels)) {
			out = append(out, w)
		}
	}
	return out
}

func namesOf(list []workload) (out []string) {
	for _, w := range list {
		out = append(out, w.name)
	}
	return out
}

// Objects of one kind have different names, and all are in the release's namespace.
func TestNames(t *testing.T) {
	each(t, func(t *testing.T, _ string, o *objects) {
		seen := map[string]bool{}
		for _, x := range o.all {
			m := x.(meta.Object)
			id := fmt.Sprintf("%T %s", x, m.GetName())
			if seen[id] || m.GetName() == "" {
				t.Errorf("%s: twice, or without a name", id)
			}
			seen[id] = true
			if ns := m.GetNamespace(); ns != "" {
				t.Errorf("%s is in the namespace %s: leave it to Helm", id, ns)
			}
			if m.GetLabels()["app.kubernetes.io/instance"] != release {
				t.Errorf("%s does not say of which release it is", id)
			}
		}
	})
}

func TestSelectors(t *testing.T) {
	each(t, func(t *testing.T, _ string, o *objects) {
		all := o.workloads()
		for _, w := range all {
			if got := namesOf(o.selected(t, w.selector)); !slices.Equal(got, []string{w.name}) {
				t.Errorf("%s selects the pods of %v", w.name, got)
			}
			for _, c := range w.pod.Spec.TopologySpreadConstraints {
				if got := namesOf(o.selected(t, c.LabelSelector)); !slices.Equal(got, []string{w.name}) {
					t.Errorf("%s is spread among %v", w.name, got)
				}
			}
			if len(w.pod.Spec.TopologySpreadConstraints) == 0 {
				t.Errorf("%s is not spread", w.name)
			}
			budgets := 0
			for _, b := range o.budgets {
				if got := namesOf(o.selected(t, b.Spec.Selector)); slices.Equal(got, []string{w.name}) &&
					b.Spec.MaxUnavailable != nil {
					budgets++
				}
			}
			if budgets != 1 {
				t.Errorf("%s has %d disruption budgets", w.name, budgets)
			}
		}
		if len(o.budgets) != len(all) {
			t.Errorf("%d budgets of %d workloads", len(o.budgets), len(all))
		}
		for _, p := range o.policies {
			if got := o.selected(t, &p.Spec.PodSelector); len(got) != len(all) {
				t.Errorf("the network policy protects %v", namesOf(got))
			}
		}
	})
}

// clientService returns the service that has an address.
func clientService(o *objects) *core.Service {
	for _, s := range o.services {
		if s.Spec.ClusterIP != core.ClusterIPNone {
			return s
		}
	}
	return nil
}

func TestServices(t *testing.T) {
	each(t, func(t *testing.T, set string, o *objects) {
		headless := map[string]*core.Service{}
		client := clientService(o)
		for _, s := range o.services {
			sel := &meta.LabelSelector{MatchLabels: s.Spec.Selector}
			behind := o.selected(t, sel)
			if len(behind) == 0 {
				t.Errorf("service %s has no pods", s.Name)
			}
			for _, p := range s.Spec.Ports {
				for _, w := range behind {
					if portNamed(w.container(), p.TargetPort) == nil {
						t.Errorf("service %s: pods of %s have no port %s", s.Name, w.name, p.TargetPort.String())
					}
				}
			}
			if s.Spec.ClusterIP == core.ClusterIPNone {
				headless[s.Name] = s
			}
		}
		for _, s := range o.sets {
			h := headless[s.Spec.ServiceName]
			if h == nil || !h.Spec.PublishNotReadyAddresses {
				t.Errorf("%s: its service %s gives no names to pods that are not ready", s.Name, s.Spec.ServiceName)
				continue
			}
			if got := namesOf(o.selected(t, &meta.LabelSelector{MatchLabels: h.Spec.Selector})); !slices.Equal(got,
				[]string{s.Name}) {
				t.Errorf("service %s has the pods of %v", h.Name, got)
			}
		}
		if client == nil {
			t.Fatal("clients have no service")
		}
		want := "node"
		if len(o.deployments) > 0 {
			want = "router"
		}
		if got := client.Spec.Selector[component]; got != want {
			t.Errorf("clients reach members with the role %s, want %s", got, want)
		}
		for _, m := range o.monitors {
			sel, err := meta.LabelSelectorAsSelector(&m.Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			var watched []*core.Service
			for _, s := range o.services {
				if sel.Matches(labels.Set(s.Labels)) {
					watched = append(watched, s)
				}
			}
			if len(watched) != 1 || len(o.selected(t, &meta.LabelSelector{MatchLabels: watched[0].Spec.Selector})) != len(
				o.workloads()) {
				t.Fatalf("Prometheus reads %d services; want one that has all pods, once", len(watched))
			}
			if !strings.Contains(watched[0].Name, "grebe") {
				t.Errorf("the job %s: the alert GrebeDown wants grebe in its name", watched[0].Name)
			}
			for _, e := range m.Spec.Endpoints {
				if !slices.ContainsFunc(watched[0].Spec.Ports, func(p core.ServicePort) bool { return p.Name == e.Port }) ||
					e.Path != "/metrics" {
					t.Errorf("Prometheus reads %s of a port %s", e.Path, e.Port)
				}
			}
		}
		if set == "gpu" && (len(o.monitors) != 1 || len(o.rules) != 1) {
			t.Error("nothing watches it")
		}
	})
}

func portNamed(c *core.Container, p intstr.IntOrString) *core.ContainerPort {
	for i := range c.Ports {
		if c.Ports[i].Name == p.StrVal || p.Type == intstr.Int && c.Ports[i].ContainerPort == p.IntVal {
			return &c.Ports[i]
		}
	}
	return nil
}

// configured returns the configuration of a workload's pods as Grebe reads it there.
func configured(t *testing.T, o *objects, w *workload) *config.Loaded {
	t.Helper()
	c := w.container()
	at := slices.Index(c.Args, "-c")
	if at < 0 || c.Args[0] != "serve" {
		t.Fatalf("%s: arguments %v", w.name, c.Args)
	}
	dir, file := filepath.Split(c.Args[at+1])
	var data string
	for _, m := range c.VolumeMounts {
		if filepath.Clean(dir) != m.MountPath {
			continue
		}
		for _, v := range w.pod.Spec.Volumes {
			for _, cm := range o.configs {
				if v.Name == m.Name && v.ConfigMap != nil && v.ConfigMap.Name == cm.Name {
					data = cm.Data[file]
				}
			}
		}
	}
	if data == "" {
		t.Fatalf("%s: no volume has %s", w.name, c.Args[at+1])
	}
	name := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Source{File: name, Env: environment(t, c, w.name+"-0")})
	if err != nil {
		t.Fatalf("%s: %v in\n%s", w.name, err, data)
	}
	if len(loaded.Unknown) > 0 {
		t.Errorf("%s: variables %v name no key", w.name, loaded.Unknown)
	}
	return loaded
}

// environment expands a container's variables as the kubelet does.
func environment(t *testing.T, c *core.Container, pod string) (out []string) {
	t.Helper()
	fields := map[string]string{"metadata.name": pod, "status.podIP": "10.0.0.1"}
	known := map[string]string{}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if value = fields[e.ValueFrom.FieldRef.FieldPath]; value == "" {
				t.Fatalf("variable %s: no field %s", e.Name, e.ValueFrom.FieldRef.FieldPath)
			}
		}
		for k, v := range known { // variables above this one only
			value = strings.ReplaceAll(value, "$("+k+")", v)
		}
		if strings.Contains(value, "$(") {
			t.Errorf("variable %s: %s names one that is not above it", e.Name, value)
		}
		known[e.Name] = value
		out = append(out, e.Name+"="+value)
	}
	return out
}

func TestConfiguration(t *testing.T) {
	each(t, func(t *testing.T, set string, o *objects) {
		for _, w := range o.workloads() {
			cfg, c := configured(t, o, &w), w.container()
			for name, addr := range map[string]string{
				"http": cfg.Listen, "admin": cfg.AdminListen, "grpc": cfg.GRPCListen, "peers": cfg.Cluster.Listen,
			} {
				p := portNamed(c, intstr.FromString(name))
				if p == nil || fmt.Sprint("0.0.0.0:", p.ContainerPort) != addr {
					t.Errorf("%s listens on %s, and its port %s is %v", w.name, addr, name, p)
				}
			}
			if len(c.Ports) != 4 {
				t.Errorf("%s has %d ports", w.name, len(c.Ports))
			}
			if cfg.Cluster.Node != w.name+"-0" {
				t.Errorf("%s is called %s in the cluster", w.name, cfg.Cluster.Node)
			}
			advertised := "10.0.0.1:7070"
			if w.set != nil {
				advertised = fmt.Sprintf("%s-0.%s.%s.svc:7070", w.name, w.set.Spec.ServiceName, namespace)
			}
			if cfg.Cluster.Advertise != advertised {
				t.Errorf("%s advertises %s, want %s", w.name, cfg.Cluster.Advertise, advertised)
			}
			roles := []string{w.role}
			if len(o.deployments) == 0 && w.role == "node" {
				roles = []string{"node", "router"}
			}
			if !slices.Equal(cfg.Cluster.Roles, roles) {
				t.Errorf("%s has the roles %v, want %v", w.name, cfg.Cluster.Roles, roles)
			}
			if client := clientService(o); !slices.Contains(cfg.Hosts, client.Name+"."+namespace+".svc") {
				t.Errorf("%s refuses requests to its service: hosts %v", w.name, cfg.Hosts)
			}
			stop := cfg.Limits.DrainMillis + cfg.Limits.ShutdownMillis
			grace := int(*w.pod.Spec.TerminationGracePeriodSeconds)
			if want := 15 + 20 + 10; set == "default" && grace != want || grace*1000 < 1000*preStop(t, c)+stop+5000 {
				t.Errorf("%s is killed after %d s; it drains for %d s and takes %d ms to stop", w.name, grace, preStop(t, c), stop)
			}
			files(t, &w, cfg)
			room(t, &w, cfg)
		}
	})
}

// preStop returns the seconds that a container's hook may take before SIGTERM.
func preStop(t *testing.T, c *core.Container) int {
	t.Helper()
	args := c.Lifecycle.PreStop.Exec.Command
	at := slices.Index(args, "--timeout")
	if at < 0 || args[0] != "/usr/local/bin/grebe" || !slices.Equal(args[1:3], []string{"cluster", "leave"}) {
		t.Fatalf("preStop runs %v", args)
	}
	d, err := time.ParseDuration(args[at+1])
	if err != nil {
		t.Fatal(err)
	}
	return int(d.Seconds())
}

// room checks that a pod has the memory and the disk that its configuration gives to KV.
func room(t *testing.T, w *workload, cfg *config.Loaded) {
	t.Helper()
	if cfg.Holds() && cfg.Cache.HostMemory.Bytes >= w.container().Resources.Requests.Memory().Value() {
		t.Errorf("%s holds %d bytes of KV in %v of memory", w.name, cfg.Cache.HostMemory.Bytes,
			w.container().Resources.Requests.Memory())
	}
	if w.set == nil {
		return
	}
	size := w.set.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests[core.ResourceStorage]
	if cfg.Cache.Disk.Bytes == 0 || cfg.Cache.Disk.Bytes >= size.Value() {
		t.Errorf("%s holds %d bytes of KV on a disk of %v", w.name, cfg.Cache.Disk.Bytes, &size)
	}
}

// files checks that what a configuration names is mounted, and that only data is written.
func files(t *testing.T, w *workload, cfg *config.Loaded) {
	t.Helper()
	under := map[string]bool{} // by mount: whether it is read-only
	used := map[string]bool{}
	for _, m := range w.container().VolumeMounts {
		under[m.MountPath], used[m.Name] = m.ReadOnly, true
		if _, ok := under[m.MountPath]; !ok {
			t.Errorf("%s: two volumes at %s", w.name, m.MountPath)
		}
	}
	mounted := func(file string) (readOnly, ok bool) {
		for dir, ro := range under {
			if strings.HasPrefix(file, dir+"/") {
				return ro, true
			}
		}
		return false, false
	}
	for _, f := range []string{cfg.Auth.Keys, cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA, cfg.Cluster.TLS.Cert,
		cfg.Cluster.TLS.Key,
		cfg.Cluster.TLS.CA, cfg.Models[0].Path} {
		if ro, ok := mounted(f); f != "" && (!ok || !ro) {
			t.Errorf("%s: no read-only volume has %s", w.name, f)
		}
	}
	for _, dir := range []string{cfg.DataDir, "/tmp/x"} {
		if ro, ok := mounted(dir); !ok || ro {
			t.Errorf("%s: %s cannot be written", w.name, dir)
		}
	}
	volumes := map[string]bool{}
	for _, v := range w.pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	if w.set != nil {
		for _, v := range w.set.Spec.VolumeClaimTemplates {
			volumes[v.Name] = true
		}
	}
	if !reflect.DeepEqual(used, volumes) {
		t.Errorf("%s mounts %v and has %v", w.name, used, volumes)
	}
}

func TestProbes(t *testing.T) {
	each(t, func(t *testing.T, _ string, o *objects) {
		for _, w := range o.workloads() {
			c := w.container()
			for _, p := range []struct {
				name, path string
				probe      *core.Probe
			}{
				{"startup", "/v2/health/live", c.StartupProbe}, {"liveness", "/v2/health/live", c.LivenessProbe},
				{"readiness", "/v2/health/ready", c.ReadinessProbe},
			} {
				if p.probe == nil || p.probe.HTTPGet == nil || p.probe.HTTPGet.Path != p.path ||
					portNamed(c, p.probe.HTTPGet.Port) == nil {
					t.Errorf("%s: %s probe %v", w.name, p.name, p.probe)
				}
			}
			if got := portNamed(c, c.ReadinessProbe.HTTPGet.Port); got.Name != "admin" {
				t.Errorf("%s: probes use %s, which may want certificates of clients", w.name, got.Name)
			}
		}
	})
}

func TestPodsHaveFewRights(t *testing.T) {
	each(t, func(t *testing.T, set string, o *objects) {
		for _, w := range o.workloads() {
			spec, c := &w.pod.Spec, w.container()
			p, s := spec.SecurityContext, c.SecurityContext
			if !*p.RunAsNonRoot || *p.RunAsUser == 0 || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
				*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
				!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("%s may do too much: %v %v", w.name, p, s)
			}
			if len(spec.Containers) != 1 || spec.HostNetwork || *spec.EnableServiceLinks {
				t.Errorf("%s: containers %d, host network %t, service links %t", w.name, len(spec.Containers), spec.HostNetwork,
					*spec.EnableServiceLinks)
			}
			if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s asks for no memory", w.name)
			}
			gpu := c.Resources.Limits["nvidia.com/gpu"]
			if want := set == "gpu" && w.role == "node"; (gpu.Value() == 1) != want {
				t.Errorf("%s has %v GPUs", w.name, gpu)
			}
			if cfg := configured(t, o, &w); set == "gpu" && w.role == "node" && cfg.Device != "cuda" {
				t.Errorf("%s computes on %s", w.name, cfg.Device)
			}
			token := *spec.AutomountServiceAccountToken
			if coordinated := configured(t, o, &w).Cluster.Coordinator == "kubernetes"; token != coordinated ||
				coordinated != (len(o.roles) == 1) {
				t.Errorf("%s: token %t, coordinator kubernetes %t, %d roles", w.name, token, coordinated, len(o.roles))
			}
			if len(o.accounts) != 1 || spec.ServiceAccountName != o.accounts[0].Name {
				t.Errorf("%s has the account %s", w.name, spec.ServiceAccountName)
			}
		}
	})
}

// The rights that `coordinator: kubernetes` documents in docs/cluster.md, and no others.
func TestRights(t *testing.T) {
	want := map[string][]string{
		"/configmaps":                {"get", "list", "watch", "create", "update", "delete"},
		"coordination.k8s.io/leases": {"list", "create", "patch", "delete"},
	}
	each(t, func(t *testing.T, _ string, o *objects) {
		for _, r := range o.roles {
			got := map[string][]string{}
			for _, rule := range r.Rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						got[group+"/"+resource] = append(got[group+"/"+resource], rule.Verbs...)
					}
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("rights %v, want %v", got, want)
			}
			b := o.bindings[0]
			if len(o.bindings) != 1 || b.RoleRef.Name != r.Name || b.RoleRef.Kind != "Role" || len(b.Subjects) != 1 ||
				b.Subjects[0].Name != o.accounts[0].Name || b.Subjects[0].Namespace != namespace {
				t.Errorf("the rights are given to %v", b.Subjects)
			}
		}
	})
}

// The network policy names the ports that pods have, and keeps the admin listener and members' port from clients.
func TestNetworkPolicy(t *testing.T) {
	each(t, func(t *testing.T, _ string, o *objects) {
		c := o.workloads()[0].container()
		open := map[string]bool{}
		for _, rule := range o.policies[0].Spec.Ingress {
			for _, p := range rule.Ports {
				name := portNamed(c, *p.Port)
				if name == nil {
					t.Errorf("port %v is nobody's", p.Port)
					continue
				}
				open[name.Name] = len(rule.From) == 0
			}
		}
		if want := map[string]bool{"http": true, "grpc": true, "peers": false, "admin": false}; !reflect.DeepEqual(open,
			want) {
			t.Errorf("open to everyone: %v, want %v", open, want)
		}
	})
}

// Certificates of members name the pod, as package mtls wants it, and come from an issuer that is there.
func TestCertificates(t *testing.T) {
	each(t, func(t *testing.T, set string, o *objects) {
		for _, w := range o.workloads() {
			cfg := configured(t, o, &w)
			if cfg.Cluster.Insecure != (set == "minimal") {
				t.Errorf("%s: insecure %t", w.name, cfg.Cluster.Insecure)
			}
			for _, v := range w.pod.Spec.Volumes {
				if v.CSI == nil {
					continue
				}
				a := v.CSI.VolumeAttributes
				if got, want := a["csi.cert-manager.io/uri-sans"], "grebe://"+cfg.Cluster.Name+"/${POD_NAME}"; got != want {
					t.Errorf("%s: the certificate is for %s, want %s", w.name, got, want)
				}
				if usages := a["csi.cert-manager.io/key-usages"]; !strings.Contains(usages, "server auth") ||
					!strings.Contains(usages, "client auth") {
					t.Errorf("%s: the certificate is for %s", w.name, usages)
				}
				issuer := a["csi.cert-manager.io/issuer-name"]
				if set == "kv" {
					if issuer != "company-ca" || len(o.issuers) != 0 {
						t.Errorf("issuer %s, and the chart makes %d", issuer, len(o.issuers))
					}
					continue
				}
				if len(o.issuers) != 2 || len(o.authorities) != 1 || issuer != o.issuers[0].Name && issuer != o.issuers[1].Name {
					t.Errorf("%s: issuer %s of %d", w.name, issuer, len(o.issuers))
				}
			}
		}
		for _, c := range o.authorities {
			for _, i := range o.issuers {
				if i.Spec.CA != nil && i.Spec.CA.SecretName != c.Spec.SecretName ||
					i.Spec.SelfSigned != nil && i.Name != c.Spec.IssuerRef.Name {
					t.Errorf("issuer %s does not go with the authority %s", i.Name, c.Name)
				}
			}
		}
	})
}

// Dashboard and alerts are the files of deploy.
func TestMonitoring(t *testing.T) {
	documents, err := render(load(t), valuesOf(t, "gpu"))
	if err != nil {
		t.Fatal(err)
	}
	o := decode(t, documents)
	want, err := os.ReadFile("../../grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, c := range o.configs {
		if c.Data["grebe.json"] == string(want) && c.Labels["grafana_dashboard"] == "1" {
			found = true
		}
	}
	if !found {
		t.Error("no dashboard, or another one than deploy/grafana.json")
	}
	data, err := os.ReadFile("../../alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := o.rules[0].DeepCopy()
	rules.Spec.Groups = nil
	if err := yaml.UnmarshalStrict(data, &rules.Spec); err != nil {
		t.Fatal(err)
	}
	if len(rules.Spec.Groups) == 0 || !reflect.DeepEqual(rules.Spec, o.rules[0].Spec) {
		t.Error("the alerts are not those of deploy/alerts.yaml")
	}
}
