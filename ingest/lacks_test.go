package ingest

import (
	"strings"
	"testing"

	"grebe/internal/cli"
)

// Before an import empties fields of what is in the catalog, it names them. An empty catalog has nothing to lose.
func TestWarnsOfEmptiedFields(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	whole := file(t, "items.ndjson",
		[]byte(`{"id":"1","text":"a","identifier":5,"codes":[1,2],"attributes":{"price":["3"]}}`+"\n"))
	prices := file(t, "items.csv", []byte("id,attributes.price\n1,4\n"))
	texts := file(t, "items.ndjson", []byte(`{"id":"1","text":"b"}`+"\n"))
	gone := file(t, "items.ndjson", []byte(`{"delete":"1"}`+"\n"))
	users := file(t, "users.csv", []byte("id,history\nu1,1\n"))
	events := file(t, "events.csv", []byte("user,item,time\nu1,1,1\n"))
	for name, to := range map[string]Import{"folder": {DataDir: t.TempDir()}, "server": {Server: catalogServer(t),
		Access: &cli.AccessFlags{}}} {
		for _, c := range []struct {
			files []string
			want  string // "": no warning
		}{
			{[]string{texts, prices, users}, ""},
			{[]string{whole}, ""},
			{[]string{prices}, prices + " has only id and attributes.price. The items of the catalog that it replaces lose " +
				"their text, tokens, identifier and codes."},
			{[]string{texts}, "the first line of " + texts + " has only id and text. The items of the catalog that such lines " +
				"replace lose their identifier, codes and attributes."},
			{[]string{users}, users + " has only id and history. The users of the catalog that it replaces lose their text, " +
				"tokens and events."},
			{[]string{events}, ""},
			{[]string{gone}, ""},
		} {
			for _, dry := range []bool{true, false} {
				to.Files, to.DryRun, to.LastWins = c.files, dry, true
				out := run(t, &to, nil)
				_, got, warned := strings.Cut(out, "Warning: ")
				got, _, _ = strings.Cut(got, "\n")
				if strings.Contains(got, "without text") {
					warned, got = false, ""
				}
				if warned != (c.want != "") || got != c.want || strings.Contains(out, "error") {
					t.Errorf("%s, dry run %v, %v: want the warning %q:\n%s", name, dry, c.files, c.want, out)
				}
			}
		}
	}
}
