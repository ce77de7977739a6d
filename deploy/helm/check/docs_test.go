package check

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	"k8s.io/apimachinery/pkg/api/meta"
)

var (
	setFlag = regexp.MustCompile(`--set ([^\s` + "`" + `]+)`)
	block   = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```")
)

// The commands of docs/how-to/kubernetes.md name objects that the chart makes with the page's own values, and values
// that the chart has.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	c := load(t)
	values, commands := "", ""
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		switch m[1] {
		case "yaml":
			values += m[2]
		case "bash":
			commands += m[2]
		}
	}
	read := func() chartutil.Values {
		v, err := chartutil.ReadValues([]byte(values))
		if err != nil || len(v) == 0 {
			t.Fatalf("the page's values: %v", err)
		}
		return v
	}
	documents, err := render(c, read())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, x := range decode(t, documents).all {
		m, err := meta.Accessor(x)
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.ToLower(x.GetObjectKind().GroupVersionKind().Kind)
		known[kind+"/"+m.GetName()] = true
		if kind == "statefulset" {
			known["pod "+m.GetName()+"-0"] = true
		}
	}
	set := 0
	for _, m := range setFlag.FindAllStringSubmatch(string(page), -1) {
		set++
		v := read()
		if err := strvals.ParseInto(m[1], v); err != nil {
			t.Errorf("%s: %v", m[0], err)
			continue
		}
		if _, err := render(c, v); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
	if set < 4 {
		t.Errorf("the page sets %d values: is it read right?", set)
	}
	asked := 0
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if words[0] == "helm" && words[2] != release {
			t.Errorf("%s: the release is %s in the rest of the page", line, release)
		}
		if (words[0] == "helm" || words[0] == "kubectl" && words[1] != "create") &&
			!strings.Contains(line, "--namespace "+namespace) {
			t.Errorf("%s: without the namespace", line)
		}
		for i, w := range words {
			if strings.HasPrefix(w, "statefulset/") || strings.HasPrefix(w, "service/") {
				if asked++; !known[w] {
					t.Errorf("%s: no %s", line, w)
				}
			}
			if w == "exec" {
				if asked++; !known["pod "+words[i+1]] {
					t.Errorf("%s: no pod %s", line, words[i+1])
				}
			}
			if name, ok := strings.CutPrefix(w, "grebe/cluster="); ok {
				if asked++; name != release {
					t.Errorf("%s: the cluster is called %s", line, release)
				}
			}
		}
	}
	if asked < 4 {
		t.Errorf("the page names %d objects: is it read right?", asked)
	}
}
