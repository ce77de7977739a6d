package doctor

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/embed"
)

// dataFolder is a data folder with a catalog and a table.
func dataFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	c, err := catalog.Open(filepath.Join(dir, "catalog"), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		if _, err := c.PutItem(&grebev1.Item{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := embed.OpenTables(filepath.Join(dir, "tables"), []embed.Spec{{Name: "items", Store: "pebble", Dim: 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.Table("items").Put(t.Context(), []uint64{1}, embed.Bytes([]float32{1, 2})); err != nil {
		t.Fatal(err)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func printed(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Doctor names damage with a remedy, --repair applies it and says what was lost, and a second run has nothing to do.
func TestRepairOfADataFolder(t *testing.T) {
	dir := dataFolder(t)
	for _, name := range []string{"catalog", "tables"} {
		logs, err := filepath.Glob(filepath.Join(dir, name, "*.log"))
		if err != nil || len(logs) != 1 {
			t.Fatal(logs, err)
		}
		info, err := os.Stat(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		data[info.Size()-60] ^= 1
		if err := os.WriteFile(logs[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &Report{}
	if damage(r, dir); !r.Failed() || !strings.Contains(printed(t, r), "grebe doctor --repair") {
		t.Errorf("examined:\n%s", printed(t, r))
	}
	fixed := Repair(dir)
	if text := printed(t, fixed); fixed.Failed() || strings.Count(text, "fixed") != 2 ||
		!strings.Contains(text, "lost: items: there were 3, and there are 2") {
		t.Errorf("repaired:\n%s", text)
	}
	again := Repair(dir)
	if text := printed(t, again); again.Failed() || strings.Count(text, "in order") != 2 {
		t.Errorf("repaired twice:\n%s", text)
	}
	c, err := catalog.Open(filepath.Join(dir, "catalog"), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if busy := Repair(dir); !busy.Failed() || !strings.Contains(printed(t, busy), "stop the server") {
		t.Errorf("beside a server:\n%s", printed(t, busy))
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A missing folder is an error.
func TestRepairOfNoFolder(t *testing.T) {
	if r := Repair(filepath.Join(t.TempDir(), "absent")); !r.Failed() {
		t.Error(printed(t, r))
	}
}
