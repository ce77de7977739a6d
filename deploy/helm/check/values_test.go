package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
)

// What is wrong with values is said, before anything is installed.
func TestBadValues(t *testing.T) {
	c := load(t)
	for _, bad := range []struct{ values, want string }{
		{"nodes: {replicas: 3}", "nodes"},
		{"node: {replicas: 0}", "replicas"},
		{"node: {replicas: many}", "replicas"},
		{"node: {storage: {size: 100 GB}}", "size"},
		{"router: {storage: {className: fast}}", "className"},
		{"cluster: {coordinator: zookeeper://x:1}", "coordinator"},
		{"cluster: {coordinator: 'etcd://x'}", "coordinator"},
		{"cluster: {tls: {mode: maybe}}", "mode"},
		{"cluster: {routing: random}", "routing"},
		{"preStopSeconds: 0", "preStopSeconds"},
		{"models: {claimName: ''}", "models: name"},
		{"models: {volume: {nfs: {}, hostPath: {}}}", "volume"},
		{"config: {models: []}", "models"},
		{"config: {limits: {drain_ms: soon}}", "drain_ms"},
		{"cluster: {tls: {mode: secret, secretName: x}}", "random names"},
		{"{cluster: {tls: {mode: secret}}, router: {replicas: 0}}", "cluster.tls.secretName"},
		{"cluster: {tls: {issuer: {create: false}}}", "cluster.tls.issuer.name"},
		{"clientTLS: {clientCA: true}", "clientTLS.secretName"},
		{"config: {listen: '0.0.0.0:1'}", "config.listen"},
		{"node: {config: {cluster: {name: x}}}", "config.cluster"},
		{"router: {config: {auth: {keys: x}}}", "config.auth"},
	} {
		values, err := chartutil.ReadValues([]byte(bad.values))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(c, values); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want an error with %q", bad.values, err, bad.want)
		}
	}
}

// free are values whose keys are the user's.
var free = []string{"config", "node.config", "router.config", "kv.config", "models.volume",
	"monitoring.dashboard.labels",
	"networkPolicy.monitoring", "global", "definitions"}

// leaves returns the paths of values that have no keys of their own.
func leaves(path string, v any) (out []string) {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 || slices.Contains(free, path) || strings.HasSuffix(path, ".resources") {
		return []string{path}
	}
	for k, x := range m {
		out = append(out, leaves(strings.TrimPrefix(path+"."+k, "."), x)...)
	}
	sort.Strings(out)
	return out
}

// properties returns the paths that the schema knows.
func properties(path string, s map[string]any) (out []string) {
	props, ok := s["properties"].(map[string]any)
	if !ok || slices.Contains(free, path) || strings.HasSuffix(path, ".resources") {
		return []string{path}
	}
	for k, x := range props {
		out = append(out, properties(strings.TrimPrefix(path+"."+k, "."), x.(map[string]any))...)
	}
	sort.Strings(out)
	return out
}

// Values, their schema and their documentation have the same keys.
func TestValuesAreDocumented(t *testing.T) {
	c := load(t)
	have := leaves("", map[string]any(c.Values))
	var schema map[string]any
	if err := json.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	known := slices.DeleteFunc(properties("", schema), func(p string) bool { return p == "global" }) // Helm's own
	if !slices.Equal(have, known) {
		t.Errorf("values.yaml has\n%v\nvalues.schema.json\n%v", have, known)
	}
	data, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range have {
		role, rest, _ := strings.Cut(p, ".")
		if role == "router" || role == "kv" {
			role = "node" // one table for the three
		}
		if role == "node" {
			p = "node." + rest
		}
		if !strings.Contains(string(data), "`"+p+"`") {
			t.Errorf("README.md does not tell of `%s`", p)
		}
	}
}
