package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"grebe/cluster/coord"
	"grebe/cluster/coord/kube/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	good := Options{Server: "10.0.0.1:6443", Namespace: "shop", Cluster: "c1", Token: "/t", CA: "/c"}
	loopback := good
	loopback.Server = "[::1]:443"
	for in, want := range map[string]Options{
		"kubernetes://10.0.0.1:6443/shop?token=/t&ca=/c":  good,
		"kubernetes://10.0.0.1:6443/shop/?ca=/c&token=/t": good,
		"kubernetes://[::1]/shop?token=/t&ca=/c":          loopback,
		"kubernetes://10.0.0.1:6443/shop?token=/t":        {},
		"kubernetes://10.0.0.1:6443/?token=/t&ca=/c":      {},
		"kubernetes://10.0.0.1:6443/a/b?token=/t&ca=/c":   {},
		"kubernetes://10.0.0.1:6443/Shop?token=/t&ca=/c":  {},
		"kubernetes:///shop?token=/t&ca=/c":               {},
		"kubernetes://a/shop?token=/t&ca=/c&x=1":          {},
		"kubernetes://a/shop?token=/t&ca=/c&ca=/d":        {},
		"kubernetes://u@a/shop?token=/t&ca=/c":            {},
		"kubernetes:shop":                                 {},
		"https://a/shop?token=/t&ca=/c":                   {},
		"":                                                {},
	} {
		got, err := Parse(in, "c1")
		if (err == nil) != (want.Server != "") || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q gives %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestInPod(t *testing.T) {
	pod := func(k string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}[k]
	}
	dir := t.TempDir()
	if _, err := inPod("c1", pod, dir); err == nil || !strings.Contains(err.Error(), "service account") {
		t.Errorf("a pod without a service account: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "namespace"), []byte("shop\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := inPod("c1", pod, dir)
	want := Options{Server: "[fd00::1]:443", Namespace: "shop", Cluster: "c1",
		Token: filepath.Join(dir, "token"), CA: filepath.Join(dir, "ca.crt")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("in a pod: %+v, %v; want %+v", got, err, want)
	}
	none := func(string) string { return "" }
	if _, err := inPod("c1", none, dir); err == nil || !strings.Contains(err.Error(), "no pod") {
		t.Errorf("outside of a pod: %v", err)
	}
}

// A client over TCP and TLS. The token is replaced while it runs; an unknown token and another authority are refused.
func TestTLS(t *testing.T) {
	s := kubetest.New()
	address := s.Listen(t, "shop")
	o, err := Parse(address, "c1")
	if err != nil {
		t.Fatal(err)
	}
	open := func(o Options) *Client {
		c, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	o.Timeout = time.Minute // this machine may be busy
	c := open(o)
	version, err := c.Swap(t.Context(), "a", []byte("1"), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	events := c.Watch(t.Context(), "")
	if e := <-events; e.Kind != coord.Listing || len(e.Entries) != 1 || string(e.Entries[0].Data) != "1" {
		t.Errorf("the watch begins with %+v", e)
	}

	s.Admit("new")
	if err := os.WriteFile(o.Token, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Swap(t.Context(), "a", []byte("2"), version, nil); err != nil {
		t.Errorf("after the token was replaced: %v", err)
	}
	for e := range events { // it may have to begin again with the new token
		if len(e.Entries) == 1 && string(e.Entries[0].Data) == "2" {
			break
		}
	}

	s.Admit("another")
	if _, err := c.Get(t.Context(), "a"); !errors.Is(err, coord.ErrUnavailable) || !strings.Contains(err.Error(), "401") {
		t.Errorf("with an unknown token: %v", err)
	}
	u, err := url.Parse(kubetest.New().Listen(t, "shop"))
	if err != nil {
		t.Fatal(err)
	}
	o.CA, o.Timeout = u.Query().Get("ca"), time.Second
	if _, err := open(o).Get(t.Context(), "a"); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("with another authority: %v", err)
	}
}

// Each right is needed, and a refusal names it.
func TestRights(t *testing.T) {
	var all []kubetest.Rule
	for _, need := range rights {
		all = append(all, kubetest.Rule{Group: need.resource.group, Resource: need.resource.name, Verbs: need.verbs})
	}
	if !reflect.DeepEqual(all, kubetest.Rules()) {
		t.Fatalf("a client asks for %v, the server gives %v", all, kubetest.Rules())
	}
	for i, rule := range all {
		for _, verb := range rule.Verbs {
			t.Run(verb+" "+rule.Resource, func(t *testing.T) {
				virtual(t, func(t *testing.T, w *world) {
					less := slices.Clone(all)
					less[i].Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == verb })
					w.Allow(less...)
					lacks(t, w, verb, rule)
				})
			})
		}
	}
}

// lacks uses everything that a client can do without a right, and looks for the refusal.
func lacks(t *testing.T, w *world, verb string, rule kubetest.Rule) {
	var log bytes.Buffer
	l := w.net.Link()
	c, err := Open(Options{Server: "kubernetes:443", Namespace: "shop", Cluster: "c1", Dial: l.Dial,
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	missing, err := c.Missing(t.Context())
	if err != nil || len(missing) != 1 || missing[0].Verb != verb || missing[0].Resource != rule.Resource {
		t.Errorf("missing are %v, %v", missing, err)
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		lease, err := c.Grant(ctx, time.Second)
		note(err)
		version, err := c.Swap(ctx, "a", []byte("1"), 0, lease)
		note(err)
		version, err = c.Swap(ctx, "a", []byte("2"), version, lease)
		note(err)
		_, err = c.Get(ctx, "a")
		note(err)
		_, err = c.List(ctx, "")
		note(err)
		events := c.Watch(ctx, "")
		<-events
		time.Sleep(3 * time.Second)
		note(c.Delete(ctx, "a", version))
		if lease != nil {
			note(lease.Close(ctx))
		}
	}
	cancel()
	_ = c.Close()
	text := log.String() + fmt.Sprint(errors.Join(errs...))
	full := strings.TrimSuffix(rule.Resource+"."+rule.Group, ".")
	if want := fmt.Sprintf("no right to %s %s in namespace shop", verb, full); !strings.Contains(text, want) {
		t.Errorf("nothing says %q:\n%s", want, text)
	}
}

// Names, labels and pages: all keys that coord allows can be stored, and listings have many pages.
func TestKeys(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		keys := []string{strings.Repeat("x", 512), "A/b", "a/B", "a/b", "-/-", "!\"#$%&'()*+,/./:;<=>?@[]^_`{|}~", "."}
		for i := range 250 {
			keys = append(keys, fmt.Sprint("many/", i))
		}
		slices.Sort(keys)
		for _, key := range keys {
			if _, err := c.Swap(t.Context(), key, []byte(key), 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		entries, err := c.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, string(e.Data))
		}
		if !slices.Equal(got, keys) {
			t.Errorf("listed %d keys, want %d", len(got), len(keys))
		}
		for _, prefix := range []string{"many/", "many/1", "a", "-/", "!", "ma"} {
			entries, err := c.List(t.Context(), prefix)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !strings.HasPrefix(k, prefix) })
			if len(entries) != len(want) || len(want) == 0 {
				t.Errorf("under %q there are %d keys, want %d", prefix, len(entries), len(want))
			}
		}
	})
}

// Two clusters in one namespace do not see each other.
func TestClustersApart(t *testing.T) {
	virtual(t, func(t *testing.T, w *world) {
		c, _ := w.open(t)
		other, err := Open(Options{Server: "kubernetes:443", Namespace: "shop", Cluster: "c2", Dial: w.net.Link().Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := c.Swap(t.Context(), "a", []byte("1"), 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Swap(t.Context(), "a", []byte("2"), 0, nil); err != nil {
			t.Fatal(err)
		}
		for data, c := range map[string]*Client{"1": c, "2": other} {
			entries, err := c.List(t.Context(), "")
			if err != nil || len(entries) != 1 || string(entries[0].Data) != data {
				t.Errorf("want %q alone, got %v, %v", data, entries, err)
			}
		}
	})
}

// ConfigMaps that people have changed are errors, not entries.
func TestStrangeObjects(t *testing.T) {
	var o object
	for name, change := range map[string]func(){
		"no key":            func() { o.Metadata.Annotations = nil },
		"a key with spaces": func() { o.Metadata.Annotations = map[string]string{noteKey: "a b"} },
		"no version":        func() { o.Metadata.ResourceVersion = "" },
		"version 0":         func() { o.Metadata.ResourceVersion = "0" },
		"a strange version": func() { o.Metadata.ResourceVersion = "1-2" },
		"too much":          func() { o.BinaryData = map[string][]byte{dataField: make([]byte, coord.MaxData+1)} },
	} {
		o = object{Metadata: metadata{Name: "x", ResourceVersion: "7", Annotations: map[string]string{noteKey: "a"}}}
		if e, _, err := o.entry(); err != nil || e.Version != 7 || e.Key != "a" {
			t.Fatalf("an object without data: %+v, %v", e, err)
		}
		change()
		if e, _, err := o.entry(); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// The Role in the documentation gives what a client needs, and no more.
func TestDocumentedRole(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/kubernetes-coordinator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "apiVersion: rbac.authorization.k8s.io/v1\n")
	text, _, ok := strings.Cut(rest, "```")
	var role struct {
		Kind  string
		Rules []struct {
			Groups    []string `yaml:"apiGroups"`
			Resources []string
			Verbs     []string
		}
	}
	if err := yaml.Unmarshal([]byte(text), &role); err != nil || !ok || role.Kind != "Role" {
		t.Fatalf("docs/how-to/kubernetes-coordinator.md has no Role: %v", err)
	}
	var got []kubetest.Rule
	for _, r := range role.Rules {
		group, resource := strings.Join(r.Groups, " "), strings.Join(r.Resources, " ")
		got = append(got, kubetest.Rule{Group: group, Resource: resource, Verbs: r.Verbs})
	}
	if !reflect.DeepEqual(got, kubetest.Rules()) {
		t.Errorf("docs/how-to/kubernetes-coordinator.md gives %v, want %v", got, kubetest.Rules())
	}
}
