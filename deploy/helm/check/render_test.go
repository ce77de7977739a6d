// Package check renders the chart with Helm's own engine and checks the objects: strictly against Kubernetes' types,
// and against each other and Grebe's configuration. The package has tests only.
package check

import (
	"bytes"
	"flag"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

const (
	folder    = "../grebe"
	golden    = "../testdata"
	release   = "grebe"
	namespace = "shop"
)

var rewrite = flag.Bool("rewrite", false, "write the rendered objects of "+golden+" again")

// sets are the values that the chart is rendered with: files of its folder ci. The first has none of its own.
var sets = []string{"default", "demo", "gpu", "kv", "minimal", "secret"}

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm tells of each symbolic link
	os.Exit(m.Run())
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// valuesOf returns the values of a set, without the chart's defaults.
func valuesOf(t *testing.T, set string) chartutil.Values {
	t.Helper()
	if set == "default" {
		return chartutil.Values{}
	}
	v, err := chartutil.ReadValuesFile(filepath.Join(folder, "ci", set+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render does what `helm template` does, and returns the documents in the order in which Helm installs them.
func render(c *chart.Chart, values chartutil.Values) ([]string, error) {
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{
		Name: release, Namespace: namespace, IsInstall: true, Revision: 1}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(files, name)
		}
	}
	_, sorted, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	var out []string
	for _, m := range sorted {
		out = append(out, strings.TrimSpace(m.Content)+"\n")
	}
	return out, err
}

// objects are those of one rendering.
type objects struct {
	all         []runtime.Object
	sets        []*apps.StatefulSet
	deployments []*apps.Deployment
	services    []*core.Service
	configs     []*core.ConfigMap
	accounts    []*core.ServiceAccount
	budgets     []*policy.PodDisruptionBudget
	policies    []*networking.NetworkPolicy
	roles       []*rbac.Role
	bindings    []*rbac.RoleBinding
	monitors    []*monitoring.ServiceMonitor
	rules       []*monitoring.PrometheusRule
	issuers     []*certmanager.Issuer
	authorities []*certmanager.Certificate
}

// types knows all objects of Kubernetes that the chart has.
func types(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apps.AddToScheme, core.AddToScheme, networking.AddToScheme, policy.AddToScheme,
		rbac.AddToScheme, monitoring.AddToScheme, certmanager.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// decode reads documents strictly: an unknown kind, an unknown field and a field that is there twice are errors.
func decode(t *testing.T, documents []string) *objects {
	t.Helper()
	s := types(t)
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, s, s,
		json.SerializerOptions{Yaml: true, Strict: true})
	o := &objects{}
	for _, d := range documents {
		x, _, err := strict.Decode([]byte(d), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, d)
		}
		o.add(t, x)
	}
	return o
}

func (o *objects) add(t *testing.T, x runtime.Object) {
	t.Helper()
	o.all = append(o.all, x)
	switch x := x.(type) {
	case *apps.StatefulSet:
		o.sets = append(o.sets, x)
	case *apps.Deployment:
		o.deployments = append(o.deployments, x)
	case *core.Service:
		o.services = append(o.services, x)
	case *core.ConfigMap:
		o.configs = append(o.configs, x)
	case *core.ServiceAccount:
		o.accounts = append(o.accounts, x)
	case *policy.PodDisruptionBudget:
		o.budgets = append(o.budgets, x)
	case *networking.NetworkPolicy:
		o.policies = append(o.policies, x)
	case *rbac.Role:
		o.roles = append(o.roles, x)
	case *rbac.RoleBinding:
		o.bindings = append(o.bindings, x)
	case *monitoring.ServiceMonitor:
		o.monitors = append(o.monitors, x)
	case *monitoring.PrometheusRule:
		o.rules = append(o.rules, x)
	case *certmanager.Issuer:
		o.issuers = append(o.issuers, x)
	case *certmanager.Certificate:
		o.authorities = append(o.authorities, x)
	default:
		t.Fatalf("no rules for %T: add some", x)
	}
}

// each runs a test with the objects of each set.
func each(t *testing.T, f func(t *testing.T, set string, o *objects)) {
	t.Helper()
	c := load(t)
	for _, set := range sets {
		t.Run(set, func(t *testing.T) {
			documents, err := render(c, valuesOf(t, set))
			if err != nil {
				t.Fatal(err)
			}
			f(t, set, decode(t, documents))
		})
	}
}

func TestLint(t *testing.T) {
	for _, set := range sets {
		l := lint.All(folder, valuesOf(t, set), namespace, true)
		for _, m := range l.Messages {
			if m.Severity >= support.WarningSev || !strings.Contains(m.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", set, m)
			}
		}
	}
}

// Every set is a file, and every file a set.
func TestSets(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(folder, "ci", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{"default"}
	for _, f := range files {
		got = append(got, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	if !slices.Equal(got, sets) {
		t.Errorf("files %v, want %v", got, sets)
	}
}

// The rendered objects are committed: a change of the chart is reviewed as a change of these, and tests of cmd/grebe
// start what they describe. The dashboard is left out, which is a file of its own.
func TestRendered(t *testing.T) {
	c := load(t)
	dashboard, err := os.ReadFile("../../grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	inside := strings.TrimRight("    "+strings.ReplaceAll(string(dashboard), "\n", "\n    "), " \n")
	for _, set := range sets {
		documents, err := render(c, valuesOf(t, set))
		if err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		text := "# Rendered with the values " + set + ": go test -C deploy/helm/check -run Rendered -rewrite\n---\n" +
			strings.Join(documents, "---\n")
		text = strings.ReplaceAll(text, inside, "    (deploy/grafana.json)")
		file := filepath.Join(golden, set+".yaml")
		if *rewrite {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, []byte(text)) {
			t.Errorf("%s differs from what the chart renders: go test -C deploy/helm/check -run Rendered -rewrite, and review "+
				"the diff", file)
		}
	}
}
