package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/app/apptest"
	"grebe/internal/cli"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/model/modeltest"
	"grebe/model/safetensors"
)

// TestUpgrade opens a data_dir that an older grebe has written: a catalog and its versions, an activated version, users
// and their events, rows of a table, KV on disk, prototypes and importance. This one has all of it, finds no damage,
// reuses the KV and gives the same answers, to the bit. The older server is stopped, or killed.
//
//	make upgrade OLD=../before/bin/grebe
func TestUpgrade(t *testing.T) {
	old := os.Getenv("GREBE_OLD")
	if old == "" {
		t.Skip("there is no older grebe to upgrade from: make upgrade OLD=../before/bin/grebe names one")
	}
	for _, way := range []string{"stopped", "killed"} {
		t.Run(way, func(t *testing.T) {
			w := newUpgradeWorld(t)
			w.prepare(t, old)
			before := startBinary(t, old, w.config)
			t.Cleanup(before.kill)
			first := w.version(t, before)
			w.change(t, old, before)
			w.visit(t, before)
			before.stop(t) // writes the users' KV, which stays in memory while there is room
			before = startBinary(t, old, w.config)
			t.Cleanup(before.kill)
			latest := w.state(t, before, "auto")
			want := w.state(t, before, first)
			w.visit(t, before) // brings KV up from disk
			had := w.visit(t, before)
			if way == "stopped" {
				before.stop(t)
			}
			before.kill()

			after := startServer(t, w.config)
			t.Cleanup(after.kill)
			sameLines(t, w.state(t, after, ""), want)
			got := w.visit(t, after)
			for kind, was := range had {
				is := got[kind]
				if kind == "blend" { // answers depend on the KV that memory has
					if again := w.visit(t, after)[kind]; is.prototype+again.prototype == 0 {
						t.Error("blended prompts use no prototypes")
					}
					continue
				}
				if is.answers != was.answers {
					t.Errorf("%s: answers\n%s\nwant\n%s", kind, is.answers, was.answers)
				}
				if kind == "user" { // the first prompt of a server computes the preamble
					was.cached -= preambleTokens
				}
				if was.cached <= 0 || is.disk == 0 || is.cached < was.cached {
					t.Errorf("%s: %d tokens were cached, %d of them on disk; in the older server %d", kind, is.cached, is.disk,
						was.cached)
				}
				t.Logf("%s: %d tokens were cached, %d of them on disk; in the older server %d", kind, is.cached, is.disk,
					was.cached)
			}
			sameLines(t, w.state(t, after, "auto"), latest)
			if found := damageCounted.FindAll(after.call(http.MethodGet, "/metrics", ""), -1); len(found) > 0 {
				t.Errorf("counts damage: %s", bytes.Join(found, []byte(", ")))
			}
			after.stop(t)
			if found := complaint.FindAllString(after.log.String(), -1); len(found) > 0 {
				t.Errorf("complains: %s", strings.Join(found, "\n"))
			}
		})
	}
}

var (
	damageCounted = regexp.MustCompile(`(?m)^grebe_(catalog_damaged_total|checksum_failures_total\S*) [1-9].*`)
	complaint     = regexp.MustCompile(`.*"level":"(WARN|ERROR)".*`)
	ages          = regexp.MustCompile(`"age_seconds":[^,}]*`)
)

// sameLines compares texts and shows the first line that differs.
func sameLines(t *testing.T, got, want string) {
	t.Helper()
	is, was := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(is), len(was)) {
		if i >= len(is) || i >= len(was) || is[i] != was[i] {
			t.Errorf("is\n%s\nwas\n%s", strings.Join(is[i:min(i+1, len(is))], ""), strings.Join(was[i:min(i+1, len(was))], ""))
			return
		}
	}
}

// upgradeWorld is a folder with two models, a catalog and a table: lm ranks and generates for u…, ev ranks for v….
type upgradeWorld struct {
	config, rows, row      string
	items, users, watchers int
}

func newUpgradeWorld(t *testing.T) *upgradeWorld {
	t.Helper()
	dir := t.TempDir()
	w := &upgradeWorld{config: filepath.Join(dir, "grebe.yaml"), rows: filepath.Join(dir, "rows.f32"),
		row: filepath.Join(dir, "row.ndjson"), items: 40, users: 6, watchers: 3}
	lm, ev := filepath.Join(dir, "lm"), filepath.Join(dir, "ev")
	if err := modeltest.Write(lm, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 2,
		KVHeads: 1, HeadDim: 32,
		Inter: 96, Vocab: 1200, MaxPositions: 2000, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	// prototypes have to know which tokens are numbers
	tokenizer, err := os.ReadFile("../../testdata/fixtures/tokenizer-qwen2/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(ev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hstutest.Write(ev, hstutest.Spec{Hidden: 64, Layers: 2, Heads: 2, HeadDim: 32, Items: w.items,
		MaxSeqLen: 160, Seed: 1,
		Change: func(c *hstu.Config) { c.Retrieval = false }}); err != nil {
		t.Fatal(err)
	}
	var items, users bytes.Buffer
	for i := range w.items {
		fmt.Fprintf(&items, `{"id":"i%d","tokens":%s,"identifier":%d,"codes":[%d,%d]}`+"\n",
			i, jsonOf(tokensOf(1000+i, 4+i%12)), 500+i, i%8, i/8)
	}
	for i := range w.users { // alike but for their first token and their last ones: there are prototypes of them
		fmt.Fprintf(&users, `{"id":"u%d","tokens":%s}`+"\n", i,
			jsonOf(slices.Concat(tokensOf(20+i, 1), tokensOf(7, 100), tokensOf(i, 9))))
	}
	for i := range w.watchers {
		fmt.Fprintf(&users, `{"id":"v%d","events":%s}`+"\n", i, jsonOf(w.events(i, 80, 0)))
	}
	text := fmt.Sprintf(`threads: 1
device: cpu
data_dir: data
slo_ms: 60000
models:
  - name: lm
    path: %s
    host_memory: 8MiB
    disk: 64MiB
    prompt: {preamble: {tokens: [1, 2, 3]}, instruction: {tokens: [7]}, generate_instruction: {tokens: [8]}}
    codes: {first_token: [900, 950], size: [8, 8]}
  - name: ev
    path: %s
    item_table: items
    host_memory: 8MiB
    disk: 64MiB
tables: [{name: items, dim: 64, timeout_ms: 60000, cache: 1MiB}]
catalog: {items: items.ndjson, users: users.ndjson}
`, lm, ev)
	for name, data := range map[string][]byte{"items.ndjson": items.Bytes(), "users.ndjson": users.Bytes(),
		"grebe.yaml":        []byte(text),
		"lm/tokenizer.json": tokenizer, "rows.f32": itemRows(t, ev),
		"row.ndjson": []byte(jsonOf(object{"key": 1000, "row": make([]float32, 64)}))} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// tokensOf draws n tokens.
func tokensOf(seed, n int) []int32 {
	r := rand.New(rand.NewPCG(uint64(seed), 11))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(20 + r.IntN(300))
	}
	return out
}

// events draws n events, after those that a user has.
func (w *upgradeWorld) events(seed, n, had int) []object {
	var out []object
	for i, token := range tokensOf(seed, n) {
		out = append(out, object{"item": fmt.Sprint("i", int(token)%w.items), "time": 1000 + had + i, "action": 1 + token%3})
	}
	return out
}

func jsonOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// itemRows returns the rows that a checkpoint has of items.
func itemRows(t *testing.T, path string) []byte {
	t.Helper()
	weights, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	items, err := weights.Tensor("_embedding_collection.embeddings.item_id.weight")
	if err != nil {
		t.Fatal(err)
	}
	return items.Data
}

// prepare writes rows, items' KV, prototypes and importance, with commands of the older grebe.
func (w *upgradeWorld) prepare(t *testing.T, old string) {
	t.Helper()
	for _, args := range [][]string{
		{"table", "import", "items", w.rows, "-c", w.config},
		{"index", "-c", w.config, "--model", "lm"},
		{"index", "-c", w.config, "--model", "lm", "--prototypes"},
		{"index", "-c", w.config, "--model", "lm", "--importance", "--importance-prompts", "2", "--importance-candidates",
			"4"},
	} {
		runOld(t, old, args...)
	}
}

// runOld runs a command of the older grebe to its end.
func runOld(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// change adds, changes and deletes items, users, events and rows.
func (w *upgradeWorld) change(t *testing.T, old string, s *crashServer) {
	t.Helper()
	do := func(method, path string, body any) {
		t.Helper()
		if data := s.call(method, path, jsonOf(body)); data == nil {
			t.Fatalf("%s %s fails", method, path)
		}
	}
	for i := range 12 {
		id := fmt.Sprint("n", i)
		do("PUT", "/v1/items/"+id, object{"tokens": tokensOf(70+i, 9), "identifier": 600 + i, "codes": []int{i % 8, 7}})
		do("PUT", "/v1/users/w"+id, object{"tokens": tokensOf(i, 30)})
	}
	do("PUT", "/v1/items/n3", object{"tokens": tokensOf(99, 11), "identifier": 603, "codes": []int{3, 6}})
	do("DELETE", "/v1/items/n4", nil)
	do("DELETE", "/v1/users/wn5", nil)
	for i := range w.watchers {
		do("POST", fmt.Sprintf("/v1/users/v%d/events", i), object{"events": w.events(5, 9, 80)})
	}
	runOld(t, old, "table", "import", "items", w.row, "--server", s.url, "--dim", "64")
	w.version(t, s)
}

// version waits until the catalog's latest version has all items, and returns its number.
func (w *upgradeWorld) version(t *testing.T, s *crashServer) string {
	t.Helper()
	for end := late(t); ; time.Sleep(20 * time.Millisecond) {
		var now struct {
			Items    int
			Versions []struct {
				Version string
				Items   int
			}
		}
		if err := json.Unmarshal(s.call(http.MethodGet, "/v1/catalog", ""), &now); err != nil || len(now.Versions) == 0 {
			t.Fatalf("%+v: %v", now, err)
		}
		if now.Versions[0].Items == now.Items {
			return now.Versions[0].Version
		}
		if time.Now().After(end) {
			t.Fatalf("no version has the catalog's items: %+v", now)
		}
	}
}

// state is everything that a server says of its catalog and its table, when it has activated a version of the catalog:
// auto is the latest one, and "" the one that is active.
func (w *upgradeWorld) state(t *testing.T, s *crashServer, version string) string {
	t.Helper()
	if version != "" && s.call(http.MethodPost, "/v1/catalog:activate", jsonOf(object{"version": version})) == nil {
		t.Fatalf("version %s cannot be activated", version)
	}
	var b strings.Builder
	get := func(path string) []byte {
		data := bytes.TrimSpace(s.call(http.MethodGet, path, "")) // nil of an item that the version does not have
		fmt.Fprintf(&b, "%s %s\n", path, data)
		return data
	}
	for _, kind := range []string{"items", "users"} {
		var list struct{ IDs []string }
		if err := json.Unmarshal(get("/v1/"+kind+"?limit=1000"), &list); err != nil {
			t.Fatal(err)
		}
		for _, id := range list.IDs {
			get("/v1/" + kind + "/" + id)
		}
	}
	for key := range w.items {
		get(fmt.Sprintf("/v1/tables/items?key=%d", key))
	}
	get("/v1/tables/items?key=1000")
	get("/v1/catalog")
	return ages.ReplaceAllString(b.String(), "")
}

// preambleTokens is the length of the first segment of lm's prompts.
const preambleTokens = 3

// visits are some answers, and where the tokens of their prompts came from.
type visits struct {
	answers                 string
	cached, disk, prototype int
}

// visit asks for every user, each in several ways.
func (w *upgradeWorld) visit(t *testing.T, s *crashServer) map[string]visits {
	t.Helper()
	out := map[string]visits{}
	ask := func(kind, path string, body object) {
		t.Helper()
		data := s.call(http.MethodPost, path, jsonOf(body))
		var a apptest.Answer
		if err := json.Unmarshal(data, &a); err != nil {
			t.Fatalf("%s: %v: %s", kind, err, s.log.String())
		}
		v := out[kind]
		v.answers += string(a.Results) + "\n"
		v.cached += a.Usage.Cached
		v.disk += a.Usage.BySource["disk"]
		v.prototype += a.Usage.BySource["prototype"]
		out[kind] = v
	}
	candidates := func(n int) (out []object) {
		for i := range 6 {
			out = append(out, object{"id": fmt.Sprint("i", (n*5+i*3)%w.items)})
		}
		return out
	}
	for n := range w.users {
		user := object{"id": fmt.Sprint("u", n)}
		ask("user", "/v1/rank", object{"model": "lm", "user": user, "candidates": candidates(n), "prefix": "user"})
		ask("item", "/v1/rank", object{"model": "lm", "user": user, "candidates": candidates(n), "prefix": "item"})
	}
	for n := range w.users { // KV of users who are not there comes from prototypes
		tokens := slices.Concat(tokensOf(40+n, 1), tokensOf(7, 100))
		ask("blend", "/v1/rank", object{"model": "lm", "user": object{"tokens": tokens}, "candidates": candidates(20 + n),
			"prefix": "blend"})
	}
	for n := range w.watchers {
		ask("events", "/v1/rank", object{"model": "ev", "user": object{"id": fmt.Sprint("v", n)}, "candidates": candidates(n),
			"prefix": "user"})
	}
	for n := range 12 {
		if n != 5 { // who was deleted
			ask("recommend", "/v1/recommend", object{"model": "lm", "user": object{"id": fmt.Sprint("wn", n)}, "n": 60,
				"beam_width": 64})
		}
	}
	return out
}

// stop asks the server to end, and waits for it.
func (s *crashServer) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	defer patience(t, s.cmd)()
	s.dead.Do(func() {
		<-s.read
		_ = s.cmd.Wait()
	})
	if code := s.cmd.ProcessState.ExitCode(); code != cli.Done {
		t.Errorf("exits with %d after SIGTERM:\n%s", code, s.log.String())
	}
}
