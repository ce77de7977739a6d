package ingest

import (
	"encoding/json"
	"strings"
	"testing"

	"grebe/internal/cli"
)

// A short run measures every source, and all records are imported.
func TestRun(t *testing.T) {
	var out strings.Builder
	w := &cli.World{Ctx: t.Context(), Stdout: &out, Stderr: &out}
	if err := Run(w, Options{Items: 500, Events: 300, Dir: t.TempDir(), JSON: true}); err != nil {
		t.Fatal(err)
	}
	var rows []Row
	if err := json.Unmarshal([]byte(out.String()), &rows); err != nil || len(rows) != 6 {
		t.Fatalf("%v: %s", err, out.String())
	}
	for _, r := range rows {
		if r.Records < 300 || r.Rate <= 0 || r.Bytes == 0 {
			t.Errorf("%+v", r)
		}
	}
	if (&Options{}).Validate() == nil {
		t.Error("no items are accepted")
	}
}
