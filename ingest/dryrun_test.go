package ingest

import (
	"fmt"
	"strings"
	"testing"
)

// A dry run reports what an import would change and what is wrong, and changes nothing.
func TestDryRun(t *testing.T) {
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.csv", []byte("id,text\n1,a\n2,b\n3,c\n4,d\n"))}, DataDir: dir}, nil)
	before := contents(t, dir)
	var b strings.Builder
	b.WriteString("id,text,codes\n1,a,\n2,other,\n9,new,\n9,twice,\n")
	for i := range 30 {
		fmt.Fprintf(&b, "%d,x,y\n", 100+i)
	}
	path := file(t, "items.csv", []byte(b.String()))
	out := run(t, &Import{Files: []string{path}, DataDir: dir, DryRun: true}, nil)
	for _, want := range []string{
		"34 lines: 1 new, 1 changed, 1 the same, 0 deleted, 31 bad", "2 of the catalog's 4 items are not in the files",
		"nothing was changed",
		`items.csv:5: id "9" is in line 4 of`, `items.csv:6: column codes: element 0: want an integer`,
		"error: 31 bad records", "More bad",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "items.csv:"); n != 20+1 { // and the summary
		t.Errorf("%d lines name the file, want 21:\n%s", n, out)
	}
	if got := contents(t, dir); got != before {
		t.Errorf("the dry run changed the catalog to %s", got)
	}
	users := file(t, "users.ndjson", []byte(`{"id":"u1"}`+"\n"+`{"delete":"u2"}`+"\n"))
	events := file(t, "events.ndjson", []byte(`{"user":"u1","item":"1","time":5}`+"\n"))
	out = run(t, &Import{Files: []string{users, events}, DataDir: dir, DryRun: true}, nil)
	if !strings.Contains(out, "2 lines: 1 new, 0 changed, 1 the same") || !strings.Contains(out, "1 lines: 1 new") ||
		strings.Contains(out, "error") {
		t.Error(out)
	}
}
