package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/eval"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// A model of random weights must be measured in every way, and must not look better than it is.
func TestEvalUntrained(t *testing.T) {
	page := filepath.Join(t.TempDir(), "eval.html")
	out, errs, code := grebe(t, "eval", "--untrained", "--device", "cpu", "--users", "12", "--json", "--html", page)
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var r eval.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Random || len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "random") {
		t.Errorf("the report does not say that the weights are random: %q", r.Notes)
	}
	ndcg := map[string]float64{}
	for _, l := range r.Ranking {
		if l.Expected != nil {
			ndcg[l.Way] = l.Expected.Value
		}
	}
	for _, way := range []string{"user-first", "item-first", "auto", "pointwise"} {
		if got, ok := ndcg[way]; !ok || got > ndcg["optimum"]/2 {
			t.Errorf("%s: expected NDCG@10 %.3f (measured: %v), the optimum has %.3f", way, got, ok, ndcg["optimum"])
		}
	}
	if n := len(r.Generation); n != 4 || r.Unreal != 0 || r.Short != 0 {
		t.Errorf("%d ways to generate, %d items that do not exist, %d short lists; want 4, 0, 0", n, r.Unreal, r.Short)
	}
	if data, err := os.ReadFile(page); err != nil || !strings.Contains(string(data), "optimum") {
		t.Errorf("no page: %v", err)
	}
}

// The demo's models rank customers that they never saw nearly as well as can be, with the customer first and with the
// items first. What breaks scores, masks, positions or tokens falls below these bars: weights that were not
// trained are at a tenth of the optimum, popularity at three tenths.
func TestEvalDemo(t *testing.T) {
	out, errs, code := grebe(t, "eval", "--device", "cpu", "--users", "20", "--ways", "user,item,pointwise,beam,hstu",
		"--json")
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var r eval.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	ndcg := map[string]float64{}
	for _, l := range r.Ranking {
		if l.Expected != nil {
			ndcg[l.Way] = l.Expected.Value
		}
	}
	for way, share := range map[string]float64{"user-first": 0.8, "item-first": 0.8, "pointwise": 0.6,
		"HSTU, user-first": 0.82, "HSTU, item-first": 0.82} {
		if got := ndcg[way] / ndcg["optimum"]; !(got >= share) {
			t.Errorf("%s: expected NDCG@10 is %.3f of the optimum's, want at least %.2f (%v)", way, got, share, ndcg)
		}
	}
	if r.Random || r.Unreal != 0 || r.Short != 0 {
		t.Errorf("random %v, %d items that do not exist, %d short lists", r.Random, r.Unreal, r.Short)
	}
	for _, l := range r.Generation {
		if got := l.At[2].Hit.Value; l.Model && got < 0.1 {
			t.Errorf("%s: the next purchase is among 20 items for %.2f of the customers, want a tenth: popularity has one in "+
				"fifty", l.Way, got)
		}
	}
}

// What eval world writes is what eval reads.
func TestEvalWorldAndFiles(t *testing.T) {
	dir := t.TempDir()
	_, errs, code := grebe(t, "eval", "world", "--out", dir, "--items", "1000", "--train", "3", "--cuts", "2",
		"--validation", "2", "--test", "6", "--requests", "20")
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, lines := range map[string]int{"users-train.ndjson": 3, "requests-train.ndjson": 9,
		"requests-validation.ndjson": 2, "users-test.ndjson": 6, "trace.ndjson": 20} {
		data, err := os.ReadFile(file(name))
		if n := strings.Count(string(data), "\n"); err != nil || n != lines {
			t.Errorf("%s has %d lines, want %d: %v", name, n, lines, err)
		}
	}
	out, errs, code := grebe(t, "eval", "--device", "cpu", "--checkpoint", filepath.Join(demoData, "checkpoint"), "--ways",
		"item,pointwise",
		"--items-file", file("items.ndjson"), "--users-file", file("users-test.ndjson"),
		"--requests-file", file("requests-test.ndjson"))
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"6 users", "item-first of optimum", "Not measured: pointwise",
		"given tokens by their place", "of 6 prompts 1 did not fit"} {
		if !strings.Contains(out, want) {
			t.Errorf("the result lacks %q:\n%s", want, out)
		}
	}
}

func TestEvalMistakes(t *testing.T) {
	for _, args := range [][]string{
		{"eval", "--ways", "sideways"},
		{"eval", "-c", "a.yaml", "--checkpoint", "b"},
		{"eval", "--requests-file", "r.ndjson"},
		{"eval", "--checkpoint", "b", "--users-file", "u.ndjson"},
		{"eval", "world"},
		{"eval", "world", "--out", t.TempDir(), "--items", "5"},
	} {
		if _, errs, code := grebe(t, args...); code != cli.Misuse || errs == "" {
			t.Errorf("%v: exit %d, %q, want %d with a reason", args, code, errs, cli.Misuse)
		}
	}
}

// Setups that compute the same change nothing; bf16 instead of f32 changes scores, and an earlier run stands in for a
// setup.
func TestEvalCompare(t *testing.T) {
	out, errs, code := grebe(t, "eval", "--untrained", "--users", "2", "--ways", "user,beam", "--width", "20", "--json",
		"--compare", "cpu+f32,cpu+f32+batched,plain+f32+cached,cpu+bf16+kv-fp8")
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var c eval.Contrast
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Lines) != 6 || len(c.Reports) != 4 {
		t.Fatalf("%d lines of %d setups, want two ways of three setups beside the reference: %s", len(c.Lines),
			len(c.Reports), out)
	}
	for _, l := range c.Lines {
		switch {
		case l.Setup == "cpu+f32+batched" && (l.Changed != 0 || l.Noise != nil && *l.Noise != 0):
			t.Errorf("%s: batches change %d users, noise %v", l.Way, l.Changed, *l.Noise)
		case l.Setup == "plain+f32+cached" && (l.Cached == 0 || l.Noise != nil && *l.Noise > 1e-4):
			t.Errorf("%s: plain code with %.2f cached has a noise of %v", l.Way, l.Cached, *l.Noise)
		case l.Setup == "cpu+bf16+kv-fp8" && l.Noise != nil && *l.Noise == 0:
			t.Errorf("%s: KV in fp8 changes nothing", l.Way)
		}
	}
	file := filepath.Join(t.TempDir(), "earlier.json")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code = grebe(t, "eval", "--untrained", "--compare", file+","+file)
	if code != cli.Done || !strings.Contains(out, "cpu+bf16+kv-fp8") || !strings.Contains(out, "three digits") {
		t.Errorf("exit %d: %s%s", code, errs, out)
	}
	for _, bad := range []string{"sideways", "f32,sideways", "f32,no-such.json"} {
		if _, errs, code := grebe(t, "eval", "--untrained", "--compare", bad); code == cli.Done || errs == "" {
			t.Errorf("--compare %s: exit %d, %q", bad, code, errs)
		}
	}
}

// Another catalog than the shop's is measured by the last items of its users, in every way that the models can: a model
// that scores pointwise and has codes searches too.
func TestEvalOtherCatalog(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(demoData, demo.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	configure := func(catalog string) string {
		out := strings.ReplaceAll(string(text), "./checkpoint", filepath.Join(demoData, "checkpoint"))
		out = strings.ReplaceAll(out, "scoring: {kind: identifier}", `scoring: {kind: pointwise, "yes": 300, "no": 301}`)
		at := strings.Index(out, "catalog:")
		file := filepath.Join(dir, "grebe.yaml")
		if err := os.WriteFile(file, []byte(out[:at]+"data_dir: "+dir+"\n"+catalog), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	items, users := filepath.Join(demoData, "items.ndjson"), filepath.Join(demoData, "users.ndjson")
	out, errs, code := grebe(t, "eval", "--device", "cpu",
		"-c", configure("catalog: {items: "+items+", users: "+users+"}\n"), "--candidates", "20")
	if code != cli.Done {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"pointwise, item-first", "beam search", "Each user's last item was held out",
		"Under model demo in the configuration: prefix: {orders: ["} {
		if !strings.Contains(out, want) {
			t.Errorf("the result lacks %q:\n%s", want, out)
		}
	}
	_, errs, code = grebe(t, "eval", "-c", configure("catalog: {items: "+items+"}\n"))
	if code != cli.Misuse || !strings.Contains(errs, "give --users-file, or catalog.users") {
		t.Errorf("without users: exit %d, %s", code, errs)
	}
	if err := os.Mkdir(filepath.Join(dir, "catalog"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, errs, code = grebe(t, "eval", "-c", configure(""))
	if code != cli.Misuse || !strings.Contains(errs, "belongs to the server: give --items-file and --users-file") {
		t.Errorf("with a catalog that was imported: exit %d, %s", code, errs)
	}
}
