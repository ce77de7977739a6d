package deploy

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var (
	metricInCode = regexp.MustCompile(`"(grebe_[a-z0-9_]+)"`)
	metricInRule = regexp.MustCompile(`\bgrebe_[a-z0-9_]+`)
	ofHistogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// metrics returns the names that the code gives to metrics.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range metricInCode.FindAllStringSubmatch(string(data), -1) {
			out[m[1]] = true
		}
		return err
	})
	if err != nil || len(out) < 10 {
		t.Fatalf("found %d metrics in the code: %v", len(out), err)
	}
	return out
}

// A dashboard or an alert of a metric that nobody exports shows nothing, and nobody notices.
func TestMetricsExist(t *testing.T) {
	known := metrics(t)
	for _, file := range []string{"grafana.json", "alerts.yaml"} {
		names := metricInRule.FindAllString(read(t, file), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d metrics: is it read right?", file, len(names))
		}
		for _, name := range names {
			if !known[name] && !known[ofHistogram.ReplaceAllString(name, "")] {
				t.Errorf("%s: no metric %s", file, name)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestGrafana(t *testing.T) {
	var d struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana.json")), &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q: its id is taken, or it is empty", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, g := range p.Targets {
			if strings.Count(g.Expr, "(") != strings.Count(g.Expr, ")") ||
				strings.Count(g.Expr, "{") != strings.Count(g.Expr, "}") {
				t.Errorf("panel %q: unbalanced %s", p.Title, g.Expr)
			}
		}
	}
}

func TestAlerts(t *testing.T) {
	var d struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(strings.NewReader(read(t, "alerts.yaml")))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil {
		t.Fatal(err)
	}
	for _, g := range d.Groups {
		for _, r := range g.Rules {
			if r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" ||
				r.Annotations["description"] == "" {
				t.Errorf("alert %s: wants an expression, a severity, a summary and what to do", r.Alert)
			}
		}
	}
}

func TestDockerfile(t *testing.T) {
	text := read(t, "Dockerfile")
	for _, want := range []string{"CGO_ENABLED=0", "USER 10001", `ENTRYPOINT ["/usr/local/bin/grebe"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the Dockerfile", want)
		}
	}
	if strings.Contains(text, "ENV GREBE_") {
		t.Error("the image's environment wins over every configuration file: set nothing there")
	}
}

func TestUnit(t *testing.T) {
	text := read(t, "grebe.service")
	for _, want := range []string{"ExecReload=/bin/kill -HUP", "KillSignal=SIGTERM", "DynamicUser=yes",
		"Restart=on-failure"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the unit", want)
		}
	}
}
