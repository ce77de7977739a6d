package catalog

import (
	"bytes"
	"strings"
	"testing"
)

// A small run measures everything it says it does.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Items: 20000, Changes: []int{1, 100}, Size: 64, Repeats: 2, Dir: t.TempDir()}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Indices) != 2 || len(r.Versions) != 2 || len(r.Checks) != 2*4+2*3 {
		t.Fatalf("%+v", r)
	}
	for _, v := range r.Versions {
		if v.FirstSeconds <= 0 || v.RestartSeconds <= 0 || v.RollbackSeconds <= 0 || v.CompactSeconds <= 0 ||
			v.StoredBytes <= 0 || len(v.Deltas) != 2 {
			t.Errorf("%+v", v)
		}
	}
	if lines := strings.Count(out.String(), "\n"); lines < 20 {
		t.Errorf("%d lines: %s", lines, out.String())
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Items: -1}, {Items: 5, Changes: []int{6}}, {Kinds: []string{"odd"}},
		{Parts: []string{"half"}}} {
		if _, err := Run(t.Context(), o, &bytes.Buffer{}); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
