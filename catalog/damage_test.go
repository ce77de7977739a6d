package catalog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/pebbleopen"
)

// filled returns the folder of a closed catalog with items, users and a log that has them all.
func filled(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "catalog")
	c, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 65 {
		if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprintf("i%d", i), Text: new("text")}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if _, err := c.PutUser(&grebev1.User{Id: fmt.Sprintf("u%d", i), History: []string{"i1"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func refused(t *testing.T, dir, what string) {
	t.Helper()
	c, err := Open(dir, Options{})
	if err == nil {
		items, users, _ := c.Counts()
		t.Errorf("%s: opened with %d items and %d users", what, items, users)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, pebbleopen.ErrDamaged) || !strings.Contains(err.Error(), "grebe doctor --repair") {
		t.Errorf("%s: %v", what, err)
	}
}

// A catalog whose marker is lost, or whose log was changed anywhere, is refused with a remedy. It used to open without
// the acknowledged writes, and to delete them.
func TestDamagedCatalogIsRefused(t *testing.T) {
	dir := filled(t)
	marker, err := filepath.Glob(filepath.Join(dir, "marker.manifest*"))
	if err != nil || len(marker) != 1 {
		t.Fatal(marker, err)
	}
	if err := os.Rename(marker[0], filepath.Join(dir, "hidden")); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "without its marker")
	if err := os.Rename(filepath.Join(dir, "hidden"), marker[0]); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := logs[len(logs)-1]
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for at := 5; at < len(data); at += len(data) / 5 {
		data[at] ^= 4
		if err := os.WriteFile(log, data, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, fmt.Sprintf("with byte %d of its log flipped", at))
		data[at] ^= 4
	}
	if err := os.WriteFile(log, data, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if items, users, _ := c.Counts(); items != 65 || users != 20 {
		t.Errorf("when the files are whole again: %d items, %d users", items, users)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A repair of a catalog keeps every entry but those in the damaged record, counts what is missing, and continues the
// versions. A second repair, or one of a sound catalog, does nothing.
func TestRepairOfACatalog(t *testing.T) {
	dir := filled(t)
	if loss, err := Repair(dir); loss != nil || err != nil {
		t.Fatalf("a sound catalog: %+v, %v", loss, err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := logs[len(logs)-1]
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/3] ^= 4
	if err := os.WriteFile(log, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if problems, err := Examine(dir); len(problems) != 1 || err != nil {
		t.Errorf("examined: %q, %v", problems, err)
	}
	loss, err := Repair(dir)
	if err != nil || loss == nil {
		t.Fatalf("%+v, %v", loss, err)
	}
	if text := strings.Join(loss.Lost, "; "); !strings.Contains(text, "items: there were 65, and there are 64") {
		t.Errorf("lost: %s", text)
	}
	if again, err := Repair(dir); again != nil || err != nil {
		t.Errorf("repaired twice: %+v, %v", again, err)
	}
	c, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	items, users, _ := c.Counts()
	if items != 64 || users != 20 {
		t.Errorf("%d items, %d users", items, users)
	}
	if _, err := c.PutItem(&grebev1.Item{Id: "new", Text: new("text")}); err != nil {
		t.Fatal(err)
	}
	if c.totals.version != 86 {
		t.Errorf("the next change has version %d, want 86", c.totals.version)
	}
	if _, err := Repair(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("an open catalog: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
