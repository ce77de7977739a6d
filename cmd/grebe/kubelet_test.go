package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/kube/kubetest"
	"grebe/cluster/mtls/mtlstest"
)

// kubelet starts the processes that rendered objects of the chart describe: their arguments, variables, files and
// ports. It probes them, restarts them, and stops them as Kubernetes does. Names and addresses of pods become addresses
// of this machine, and folders become folders of the test. It has no containers, so the user and the read-only file
// system are not those of the pods.
type kubelet struct {
	*trial
	api         *kubetest.Server
	coordinator string           // address of the API server
	link        *coordtest.Proxy // to it
	extra       []string         // variables of all processes, beside those of the objects
	authority   *mtlstest.Authority
	objects     []manifest
	pods        []*podProcess
	scheduled   int // pods so far, with those that are gone: no two have an address
}

// manifest has the parts of an object that are played. The module deploy/helm/check reads all of them, strictly.
type manifest struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Data  map[string]string
	Rules []struct {
		APIGroups []string `yaml:"apiGroups"`
		Resources []string
		Verbs     []string
	}
	Spec struct {
		Replicas    int
		ServiceName string         `yaml:"serviceName"`
		Selector    map[string]any // of a service, or matchLabels
		ClusterIP   string         `yaml:"clusterIP"`
		Unready     bool           `yaml:"publishNotReadyAddresses"`
		Template    struct{ Spec podSpec }
	}
}

type podSpec struct {
	Grace      int `yaml:"terminationGracePeriodSeconds"`
	Containers []struct {
		Args []string
		Env  []struct {
			Name, Value string
			ValueFrom   struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe   probe `yaml:"startupProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		Lifecycle      struct {
			PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
		}
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		Name      string
		ConfigMap *struct{ Name string } `yaml:"configMap"`
		Claim     *struct{}              `yaml:"persistentVolumeClaim"`
		CSI       *struct {
			Attributes map[string]string `yaml:"volumeAttributes"`
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// podProcess is a pod with its one process.
type podProcess struct {
	*member
	of   *manifest
	ip   string
	port map[string]string // addresses of this machine, by the port's name and by its number
	dirs map[string]string // folders of this machine, by that in the container
}

// newKubelet reads rendered objects. No process runs yet.
func newKubelet(t *testing.T, set string) *kubelet {
	t.Helper()
	k := &kubelet{trial: prepareTrial(t, 0), api: kubetest.New()}
	data, err := os.ReadFile(filepath.Join("..", "..", "deploy", "helm", "testdata", set+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var m manifest
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		k.objects = append(k.objects, m)
	}
	if k.authority, err = mtlstest.New(); err != nil {
		t.Fatal(err)
	}
	k.allow()
	k.coordinator, k.link = listenAPI(t, k.api, "shop")
	return k
}

// install starts the processes of all objects.
func (k *kubelet) install() {
	k.Helper()
	for i := range k.objects {
		of := &k.objects[i]
		for n := range of.Spec.Replicas {
			switch of.Kind {
			case "StatefulSet":
				k.schedule(of, fmt.Sprint(of.Metadata.Name, "-", n))
			case "Deployment":
				k.schedule(of, fmt.Sprintf("%s-5d8f-%d", of.Metadata.Name, n))
			}
		}
	}
	for _, p := range k.pods {
		k.run(p)
	}
}

// role returns the pods of a part of the chart. There are so many.
func (k *kubelet) role(name string, want int) (out []*podProcess) {
	k.Helper()
	for _, p := range k.pods {
		if p.of.Metadata.Labels["app.kubernetes.io/component"] == name {
			out = append(out, p)
		}
	}
	if len(out) != want {
		k.Fatalf("the chart has %d pods of %s, want %d", len(out), name, want)
	}
	return out
}

// members returns the processes of pods.
func members(pods []*podProcess) (out []*member) {
	for _, p := range pods {
		out = append(out, p.member)
	}
	return out
}

// allow gives pods the rights of the chart's Role, and no others.
func (k *kubelet) allow() {
	k.Helper()
	var rules []kubetest.Rule
	for _, o := range k.objects {
		for _, r := range o.Rules {
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					rules = append(rules, kubetest.Rule{Group: group, Resource: resource, Verbs: r.Verbs})
				}
			}
		}
	}
	if len(rules) == 0 {
		k.Fatal("the chart gives pods no rights")
	}
	k.api.Allow(rules...)
}

func (k *kubelet) find(kind, name string) *manifest {
	k.Helper()
	for i := range k.objects {
		if k.objects[i].Kind == kind && (name == "" || k.objects[i].Metadata.Name == name) {
			return &k.objects[i]
		}
	}
	k.Fatalf("the chart has no %s %s", kind, name)
	return nil
}

// schedule makes a pod of a StatefulSet or Deployment.
func (k *kubelet) schedule(of *manifest, name string) *podProcess {
	k.Helper()
	k.scheduled++
	p := &podProcess{
		member: &member{id: name, log: filepath.Join(k.dir, name+".log")}, of: of, ip: fmt.Sprint("10.0.0.", k.scheduled),
		port: map[string]string{}, dirs: map[string]string{},
	}
	c := &of.Spec.Template.Spec.Containers[0]
	for _, port := range c.Ports {
		addr := freeAddress(k)
		p.port[port.Name], p.port[fmt.Sprint(port.ContainerPort)] = addr, addr
	}
	p.listen, p.admin, p.peer = p.port["http"], p.port["admin"], p.port["peers"]
	for _, m := range c.VolumeMounts {
		dir := filepath.Join(k.dir, name, m.Name) // a claim has the name of its pod, so it is there again after a restart
		if err := os.MkdirAll(dir, 0o755); err != nil {
			k.Fatal(err)
		}
		p.dirs[m.MountPath] = dir
		k.fill(p, m.Name, m.MountPath)
	}
	k.pods = append(k.pods, p)
	k.nodes = append(k.nodes, p.member)
	return p
}

// fill puts the files of a volume into its folder.
func (k *kubelet) fill(p *podProcess, volume, at string) {
	k.Helper()
	for _, v := range p.of.Spec.Template.Spec.Volumes {
		if v.Name != volume {
			continue
		}
		switch {
		case v.Claim != nil: // of models: the only one that pods share
			p.dirs[at] = demoData
		case v.CSI != nil:
			k.issue(p.dirs[at], p.id, v.CSI.Attributes)
		}
	}
}

// issue does what the driver of cert-manager does.
func (k *kubelet) issue(dir, pod string, attributes map[string]string) {
	k.Helper()
	name, err := url.Parse(strings.ReplaceAll(attributes["csi.cert-manager.io/uri-sans"], "${POD_NAME}", pod))
	if err != nil {
		k.Fatal(err)
	}
	cert := mtlstest.Template("", "")
	cert.URIs = []*url.URL{name}
	f, err := k.authority.Write(dir, cert)
	if err != nil {
		k.Fatal(err)
	}
	for from, to := range map[string]string{f.Cert: "tls.crt", f.Key: "tls.key", f.CA: "ca.crt"} {
		if err := os.Rename(from, filepath.Join(dir, to)); err != nil {
			k.Fatal(err)
		}
	}
}

// run starts the process of a pod, again if it ran before.
func (k *kubelet) run(p *podProcess) {
	k.Helper()
	c := &p.of.Spec.Template.Spec.Containers[0]
	for _, v := range p.of.Spec.Template.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		for file, text := range k.find("ConfigMap", v.ConfigMap.Name).Data {
			text = k.here(p, text)
			if err := os.WriteFile(filepath.Join(p.dirs["/etc/grebe/config"], file), []byte(text), 0o600); err != nil {
				k.Fatal(err)
			}
		}
	}
	p.args, p.env = nil, nil
	for _, a := range c.Args {
		p.args = append(p.args, k.here(p, a))
	}
	fields := map[string]string{"metadata.name": p.id, "status.podIP": p.ip}
	var expand []string
	for _, e := range c.Env {
		value := e.Value
		if f := e.ValueFrom.FieldRef.FieldPath; f != "" {
			value = fields[f]
		}
		value = strings.NewReplacer(expand...).Replace(value)
		expand = append(expand, "$("+e.Name+")", value)
		p.env = append(p.env, e.Name+"="+k.resolve(k.here(p, value)))
	}
	p.env = append(p.env, k.extra...)
	k.launch(p.member)
}

// here replaces what a container sees by what is on this machine: folders, addresses to listen on, and the API server.
func (k *kubelet) here(p *podProcess, text string) string {
	var pairs []string
	for at, dir := range p.dirs {
		pairs = append(pairs, at+"/", dir+"/")
	}
	for port, addr := range p.port {
		pairs = append(pairs, "0.0.0.0:"+port, addr, "http://127.0.0.1:"+port, "http://"+addr)
	}
	pairs = append(pairs, "coordinator: kubernetes", "coordinator: "+k.coordinator, "/usr/local/bin/grebe", binary)
	return strings.NewReplacer(pairs...).Replace(text)
}

// resolve does what the DNS of a cluster does for names of pods; addresses of pods lead to this machine too.
func (k *kubelet) resolve(addr string) string {
	k.Helper()
	host, port, found := strings.Cut(addr, ":")
	if !found {
		return addr
	}
	for _, p := range k.pods {
		if host == p.ip {
			return p.port[port]
		}
		pod, service, _ := strings.Cut(host, ".")
		if pod != p.id || p.of.Spec.ServiceName == "" || service != p.of.Spec.ServiceName+".shop.svc" {
			continue
		}
		if s := k.find("Service", p.of.Spec.ServiceName); s.Spec.ClusterIP != "None" || !s.Spec.Unready {
			k.Fatalf("service %s gives no names to pods that are not ready", s.Metadata.Name)
		}
		return p.port[port]
	}
	return addr
}

// passes reports whether a probe succeeds.
func (p *podProcess) passes(of probe) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.port[of.HTTPGet.Port]+of.HTTPGet.Path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode >= 200 && resp.StatusCode < 400
}

func (p *podProcess) ready() bool {
	return p.passes(p.of.Spec.Template.Spec.Containers[0].ReadinessProbe)
}

// await waits until pods are started and ready. They stay live.
func (k *kubelet) await(pods ...*podProcess) {
	k.Helper()
	for _, p := range pods {
		c := &p.of.Spec.Template.Spec.Containers[0]
		k.until(time.Minute, func() string {
			if !p.passes(c.StartupProbe) {
				return p.id + " does not start"
			}
			return ""
		})
		k.until(time.Minute, func() string {
			if !p.passes(c.LivenessProbe) {
				return p.id + " is not live"
			}
			if !p.ready() {
				return p.id + " is not ready"
			}
			return ""
		})
	}
}

// stop ends a pod as Kubernetes does: the hook, then SIGTERM, both within the time of grace.
func (k *kubelet) stop(p *podProcess) {
	k.Helper()
	began, grace := time.Now(), time.Duration(p.of.Spec.Template.Spec.Grace)*time.Second
	var command []string
	for _, a := range p.of.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Exec.Command {
		command = append(command, k.here(p, a))
	}
	hook := exec.Command(command[0], command[1:]...)
	hook.Env = p.env
	if out, err := hook.CombinedOutput(); err != nil {
		k.Errorf("preStop of %s: %v: %s", p.id, err, out)
	}
	if p.ready() {
		k.Errorf("%s is ready after preStop", p.id)
	}
	k.end(p.member, syscall.SIGTERM)
	if took := time.Since(began); took > grace {
		k.Errorf("%s would have been killed: it took %v to stop, and has %v", p.id, took, grace)
	}
	gone := func(m *member) bool { return m == p.member }
	k.nodes = slices.DeleteFunc(k.nodes, gone)
	k.pods = slices.DeleteFunc(k.pods, func(x *podProcess) bool { return x == p })
}
