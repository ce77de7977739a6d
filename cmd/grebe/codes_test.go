package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/app/codebook"
	"grebe/codes"
	"grebe/embed"
	"grebe/internal/cli"
)

// Items get codes from a model and from a file, keep them when the command runs again, and can be imported.
func TestCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	var lines strings.Builder
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (40, 2), }\n"
	rows := []byte("\x93NUMPY\x01\x00" + string(rune(len(header))) + "\x00" + header)
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"id\": \"i%d\", \"tokens\": [%d, %d]}\n", i, 5+i%7, 20+i)
		rows = append(rows, embed.Bytes([]float32{float32(i % 7), float32(i)})...)
	}
	for name, data := range map[string][]byte{"items.ndjson": []byte(lines.String()), "e.npy": rows} {
		if err := os.WriteFile(file(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string][]string{
		"model": {"-c", crashSite(t, 3)},
		"file":  {"--embeddings", file("e.npy"), "--sizes", "8,8", "--seed", "3"},
	} {
		args := append([]string{"codes", file("items.ndjson"), "--codebook", file(name), "-o", file(name + ".ndjson"),
			"--json"}, from...)
		for _, want := range [][2]int{{40, 0}, {0, 40}} {
			out, errs, code := grebe(t, args...)
			var got struct{ Added, Kept, Shared, Paths int }
			if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.Done {
				t.Fatalf("%s: exit code %d: %s%s", name, code, out, errs)
			}
			if got.Added != want[0] || got.Kept != want[1] || got.Shared != 0 || got.Paths != 40 {
				t.Errorf("%s: %s, want %d items with codes added and %d kept", name, out, want[0], want[1])
			}
		}
		if out, errs, code := grebe(t, "import", file(name+".ndjson"), "--kind", "items",
			"--data-dir", file("data-"+name)); code != cli.Done {
			t.Errorf("import: exit code %d: %s%s", code, out, errs)
		}
	}
	out, _, code := grebe(t, "codes", file("items.ndjson"), "--embeddings", file("e.npy"), "--codebook", file("table"))
	if code != cli.Done || !strings.Contains(out, "40 items got codes, 0 kept theirs") ||
		!strings.Contains(out, "level  codes  used  effective  largest\n1 ") ||
		!strings.Contains(out, "effective: how many they would be if all had equally many items") ||
		!strings.Contains(out, "No two items have the same codes\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	fromTheModel(t, file("items.ndjson"))
	for _, args := range []string{
		"", " --embeddings e.npy --model x", " -c x --tensor y", " --embeddings e.npy --levels 2 --sizes 4,4,4",
	} {
		if out, errs, code := grebe(t, strings.Fields("codes items.ndjson --codebook x"+args)...); code != cli.Misuse {
			t.Errorf("%q: exit code %d: %s%s", args, code, out, errs)
		}
	}
}

// The report explains itself, with the plural of what it counts.
func TestCodesReport(t *testing.T) {
	for _, c := range []struct {
		report *codebook.Result
		want   []string
	}{
		{&codebook.Result{Report: &codes.Report{Shared: 2, Most: 2}, Added: 1, Moved: 1, Kept: 3},
			[]string{"1 item got codes, 3 kept theirs; error ", "1 item got the nearest free codes", "2 items share all"}},
		{&codebook.Result{Report: &codes.Report{}, Added: 2},
			[]string{"2 items got codes, 0 kept", "All new items have their nearest codes", "No two items have the same codes"}},
		{&codebook.Result{Report: &codes.Report{}, Kept: 2}, []string{"0 items got codes, 2 kept theirs\n", "No two items"}},
	} {
		var b strings.Builder
		if err := new(codesCmd).print(&cli.World{Stdout: &b}, c.report); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is missing:\n%s", want, b.String())
			}
		}
	}
}

// fromTheModel makes codes with the levels and sizes of a configuration's model, for items that come as CSV too.
func fromTheModel(t *testing.T, items string) {
	t.Helper()
	config, csv := crashSite(t, 3), filepath.Join(t.TempDir(), "products.csv")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	at := "    prompt: {lead_in"
	text = []byte(strings.Replace(string(text), at, "    codes: {first_token: [300, 308], size: [8, 8]}\n"+at, 1))
	rows := "sku,title\n"
	for i := range 40 {
		rows += fmt.Sprintf("i%d,lamp %d\n", i, i)
	}
	if err := errors.Join(os.WriteFile(config, text, 0o600), os.WriteFile(csv, []byte(rows), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		sizes  string
		warned bool
	}{
		{[]string{items}, "[8 8]", false},
		{[]string{csv, "--map", "id=sku,text=title"}, "[8 8]", false},
		{[]string{items, "--sizes", "8,16"}, "[8 16]", true},
		{[]string{items, "--levels", "3"}, "[16 16 16]", true},
	} {
		book := filepath.Join(t.TempDir(), "book")
		out, errs, code := grebe(t, append([]string{"codes", "-c", config, "--codebook", book, "--json"}, c.args...)...)
		var got struct{ Levels []struct{ Size int } }
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.Done {
			t.Fatalf("%q: exit code %d: %s%s", c.args, code, out, errs)
		}
		var sizes []int
		for _, l := range got.Levels {
			sizes = append(sizes, l.Size)
		}
		if fmt.Sprint(sizes) != c.sizes || strings.Contains(errs, `model "demo" has [8 8]`) != c.warned {
			t.Errorf("%q: levels of %v, want %s; %s", c.args, sizes, c.sizes, errs)
		}
	}
}
