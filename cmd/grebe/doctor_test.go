package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/internal/cli"
)

// doctorOf runs the doctor on the toy's checkpoint with these keys of the model and these items, and returns the file.
func doctorOf(t *testing.T, keys, items string) (file, out string, code int) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "grebe.yaml")
	for name, text := range map[string]string{
		file: fmt.Sprintf("listen: 127.0.0.1:0\nadmin_listen: \"\"\ngrpc_listen: \"\"\ncache: {host_memory: 16MiB}\n"+
			"models: [{name: toy, path: %s%s}]\ncatalog: {items: items.ndjson}\n",
			filepath.Join(demoData, "checkpoint"), keys),
		filepath.Join(dir, "items.ndjson"): items,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, code = grebe(t, "doctor", "-c", file)
	return file, out, code
}

const inOrder = "All that is needed is in order."

// A prompt that the server refuses at its start is a failure, in the same words.
func TestDoctorChecksThePrompt(t *testing.T) {
	for keys, says := range map[string]string{
		`, prompt: {item: "{txt}"}`: `prompt.item: template "{txt}": no field {txt}: want one of {text}`,
		`, prompt: {user: "{id}"}`:  `prompt.user: template "{id}": no field {id}: want one of {text}, {history}`,
		`, prompt: {item: "{id}"}`:  "",

		`, codes: {first_token: [9999999], size: [2]}`: `codes: level 0 takes tokens 9999999 to 10000001`,
	} {
		file, out, code := doctorOf(t, keys, "")
		if says == "" {
			if code != cli.Done || !strings.Contains(out, inOrder) {
				t.Errorf("%s: exits with %d and says\n%s", keys, code, out)
			}
			continue
		}
		if code != cli.Failed || !strings.Contains(out, says) || !strings.Contains(out, "-> correct prompt or codes") {
			t.Errorf("%s: exits with %d and says\n%s\nwant %s", keys, code, out, says)
		}
		_, errs, code := grebe(t, "serve", "-c", file)
		if code != cli.Failed || !strings.Contains(errs, says) {
			t.Errorf("%s: serve exits with %d and says\n%s", keys, code, errs)
		}
	}
}

// A path that is no checkpoint is reported with its place, and with the command that finds more.
func TestServeNamesTheKeyOfAWrongPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grebe.yaml")
	if err := os.WriteFile(file, []byte("models:\n  - name: toy\n    path: ./nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := grebe(t, "serve", "-c", file)
	for _, want := range []string{file + ":3: models[0].path: ", "config.json", "Try: grebe doctor -c " + file} {
		if code != cli.Failed || !strings.Contains(errs, want) {
			t.Errorf("exits with %d and says\n%s\nwant %q", code, errs, want)
		}
	}
	_, errs, code = grebe(t, "serve", "--model", filepath.Dir(file))
	if code != cli.Failed || !strings.Contains(errs, "flag --model: models[0].path: ") || strings.Contains(errs, "Try") {
		t.Errorf("without a file: exits with %d and says\n%s", code, errs)
	}
}

// Patterns of codes that match no token are named.
func TestDoctorReportsPatternsWithoutTokens(t *testing.T) {
	_, out, code := doctorOf(t, `, codes: {pattern: ["<z_%d>", "<a_%d>"]}`, "")
	if code != cli.Done || !strings.Contains(out, `codes.pattern[0]: "<z_%d>" matches no token`) ||
		strings.Contains(out, "codes.pattern[1]") {
		t.Errorf("exits with %d and says\n%s", code, out)
	}
}

// A model that ranks by identifier needs items with identifiers.
func TestDoctorReportsMissingIdentifiers(t *testing.T) {
	const plain, identified = `{"id":"a","text":"x"}` + "\n", `{"id":"b","text":"y","identifier":7}` + "\n"
	for _, c := range []struct {
		keys, items string
		warns       bool
	}{
		{"", plain, true},
		{"", plain + identified, false},
		{"", "", false},
		{`, scoring: {kind: pointwise, "yes": 5, "no": 6}`, plain, false},
		{`, codes: {first_token: [1], size: [2]}`, plain, false}, // it generates items
	} {
		_, out, code := doctorOf(t, c.keys, c.items)
		if got := strings.Contains(out, "no item of the catalog has one"); got != c.warns || code != cli.Done {
			t.Errorf("%q with %q: exits with %d and says\n%s", c.keys, c.items, code, out)
		}
	}
}
