package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/offheap"
	"grebe/kv"
	"grebe/model/modeltest"
	"grebe/plan"
	"grebe/server"
)

// reloadWorld is a server whose model is a link to one of several checkpoints.
type reloadWorld struct {
	dir   string
	cfg   *config.Config
	stack *App
	url   string
	log   *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const reloadItems, reloadUsers = 60, 7

// newReloadWorld writes the checkpoints a and b, a catalog, and a configuration whose model is a link to a.
func newReloadWorld(t *testing.T, settings ...config.Setting) *reloadWorld {
	t.Helper()
	w := &reloadWorld{dir: t.TempDir(), log: &syncBuffer{}}
	spec := modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 128, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 32,
		Inter: 512, Vocab: 4000}
	for i, name := range []string{"a", "b"} {
		spec.Seed = uint64(i + 1)
		if err := modeltest.Write(filepath.Join(w.dir, name), spec); err != nil {
			t.Fatal(err)
		}
	}
	w.point(t, "a")
	var items, users bytes.Buffer
	for i := range reloadItems {
		fmt.Fprintf(&items, `{"id":"i%d","tokens":[%d,%d,%d],"identifier":%d,"codes":[%d,%d]}`+"\n", i, 10+i, 100+i%7,
			200+i%5, 1000+i, i%8, i/8)
	}
	for i := range reloadUsers {
		fmt.Fprintf(&users, `{"id":"u%d","tokens":[%s%d]}`+"\n", i, strings.Repeat(fmt.Sprint(300+i, ","), 70), 9)
	}
	for name, data := range map[string][]byte{"items.ndjson": items.Bytes(), "users.ndjson": users.Bytes()} {
		if err := os.WriteFile(filepath.Join(w.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(w.dir, "grebe.yaml")
	text := `listen: 127.0.0.1:0
threads: 1
device: cpu
data_dir: data
slo_ms: 60000
models:
  - name: m
    path: now
    host_memory: 8MiB
    disk: 8MiB
    prompt: {instruction: {tokens: [7]}, generate_instruction: {tokens: [8]}}
    codes: {first_token: [2000, 2100], size: [8, 8]}
catalog: {items: items.ndjson, users: users.ndjson}
reload: {trial_ms: 0}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file, Flags: settings})
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = &cfg.Config
	return w
}

// point makes the model's link name another folder.
func (w *reloadWorld) point(t *testing.T, name string) {
	t.Helper()
	next := filepath.Join(w.dir, "next")
	if err := os.Symlink(name, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(w.dir, "now")); err != nil {
		t.Fatal(err)
	}
}

// serve loads and serves until the test ends.
func (w *reloadWorld) serve(t *testing.T) {
	t.Helper()
	var err error
	if w.stack, err = Load(t.Context(), w.cfg, Options{Log: slog.New(slog.NewTextHandler(w.log, nil))}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w.stack.first = nil // as serve does
	w.stack.server.SetReady(true)
	go func() { done <- w.stack.server.Serve(ctx, server.Listeners{HTTP: ln}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := w.stack.Close(); err != nil { // a pool reports pages that are still in use
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

func (w *reloadWorld) post(path, body string) (int, string, error) {
	resp, err := http.Post(w.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// reloadRequest returns request n of a mix of rankings in both orders and recommendations.
func reloadRequest(n int) (path, body string) {
	user := fmt.Sprintf(`"user":{"id":"u%d"}`, n%reloadUsers)
	if n%4 == 3 {
		return "/v1/recommend", fmt.Sprintf(`{%s,"n":5,"beam_width":8}`, user)
	}
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf(`{"id":"i%d"}`, (n*5+i*3)%reloadItems))
	}
	prefix := []string{"user", "item", "auto"}[n%3]
	return "/v1/rank", fmt.Sprintf(`{%s,"candidates":[%s],"prefix":%q}`, user, strings.Join(ids, ","), prefix)
}

// answer returns the answer to a request without times and usage, or an error.
func (w *reloadWorld) answer(n int) (string, error) {
	path, body := reloadRequest(n)
	status, text, err := w.post(path, body)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("%d %s", status, text)
	}
	var out struct{ Results json.RawMessage }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return "", err
	}
	// Item-first rankings are another prompt: prefix auto may choose either.
	return string(out.Results), nil
}

// reload requests the checkpoint that the link names, and waits for it.
func (w *reloadWorld) reload(t *testing.T, verb string) (status int, model reloadedModel) {
	t.Helper()
	status, text, err := w.post("/v1/models/m:"+verb, `{"wait":true}`)
	if err != nil {
		t.Fatal(err)
	}
	model.text = text
	if err := json.Unmarshal([]byte(text), &model); err != nil {
		t.Fatal(err)
	}
	return status, model
}

type reloadedModel struct {
	Version string
	Reload  struct {
		State, From, To, Error string
		Warmed                 int `json:"warmed_items"`
	}
	text string
}

const reloadKinds = 84 // number of different requests

// answersOf returns a checkpoint's answers to all requests, computed alone.
func answersOf(t *testing.T, name string) []string {
	t.Helper()
	w := newReloadWorld(t, config.Setting{Path: "models[0].disk", Value: "0"})
	w.point(t, name)
	w.serve(t)
	out := make([]string, reloadKinds)
	for n := range out {
		var err error
		if out[n], err = w.answer(n); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// bothOrders returns the answers that a checkpoint may give to request n: prefix auto may choose either order.
func bothOrders(answers []string, n int) []string {
	if n%3 != 2 || n%4 == 3 {
		return answers[n : n+1]
	}
	return nil
}

// Many clients send requests while checkpoints are swapped. No request fails. Each answer is that of one of the
// checkpoints, and of the new one after a reload has ended. A retired checkpoint gives back everything it took.
func TestReloadUnderLoad(t *testing.T) {
	defer noneLeft(t, goleak.IgnoreCurrent())
	want := map[string][]string{}
	t.Run("alone", func(t *testing.T) { want["a"], want["b"] = answersOf(t, "a"), answersOf(t, "b") })
	t.Run("reloaded", func(t *testing.T) { reloadUnderLoad(t, want) })
}

func reloadUnderLoad(t *testing.T, want map[string][]string) {
	w := newReloadWorld(t)
	w.serve(t)
	reloads := 10
	if testing.Short() {
		reloads = 4
	}
	var asked [2]atomic.Int64
	var under sync.WaitGroup
	stop := make(chan struct{})
	for c := range 6 {
		under.Go(func() {
			for n := c; ; n += 6 {
				select {
				case <-stop:
					return
				default:
				}
				n %= reloadKinds
				got, err := w.answer(n)
				if err != nil {
					t.Errorf("request %d: %v", n, err)
					return
				}
				if bothOrders(want["a"], n) == nil {
					continue
				}
				switch got {
				case want["a"][n]:
					asked[0].Add(1)
				case want["b"][n]:
					asked[1].Add(1)
				default:
					t.Errorf("request %d is answered with\n%s\nby neither checkpoint:\n%s\n%s", n, got, want["a"][n], want["b"][n])
					return
				}
			}
		})
	}
	var settled, heap int64
	for i := range reloads {
		name := []string{"b", "a"}[i%2]
		w.point(t, name)
		status, model := w.reload(t, "reload")
		if status != http.StatusAccepted || model.Reload.State != "done" || model.Reload.To != model.Version ||
			model.Reload.From == model.Version {
			t.Fatalf("reload %d: %d %s", i, status, model.text)
		}
		for n := range 4 { // from now on the new one answers
			if got, err := w.answer(n); err != nil || bothOrders(want[name], n) != nil && got != want[name][n] {
				t.Errorf("after reload %d request %d is answered with %s, %v; want %s", i, n, got, err, want[name][n])
			}
		}
		if n := len(w.stack.loaded.of("m")); n != 1 {
			t.Errorf("after reload %d, %d checkpoints are loaded", i, n)
		}
		for answers := &asked[(i+1)%2]; answers.Load() == 0 && !t.Failed(); { // clients see both
			time.Sleep(time.Millisecond)
		}
		if i == 1 {
			settled, heap = mapped(t)
		}
	}
	close(stop)
	under.Wait()
	t.Logf("%d answers of a, %d of b", asked[0].Load(), asked[1].Load())
	offHeap, inHeap := mapped(t)
	// a checkpoint has 8 MiB, its index 75 on the heap
	more := func() bool { return offHeap-settled > 24<<20 || inHeap-heap > 24<<20 }
	for end := time.Now().Add(time.Minute); more() && time.Now().Before(end); { // unused memory is given back later
		offHeap, inHeap = mapped(t)
	}
	t.Logf("off the heap %d MiB after 2 reloads, %d after all; on it %d and %d", settled>>20, offHeap>>20, heap>>20,
		inHeap>>20)
	if more() {
		t.Errorf("%d reloads took memory that was not given back", reloads-2)
	}
	w.onlyOwnEntries(t)
	if text := w.log.String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("the log has errors:\n%s", text)
	}
}

// onlyOwnEntries fails if the model's memory has entries that its cache does not know, or pages that belong to no
// entry.
func (w *reloadWorld) onlyOwnEntries(t *testing.T) {
	t.Helper()
	if err := w.stack.loaded.of("m")[0].onlyOwnEntries(); err != nil {
		t.Error(err)
	}
}

func (u *Model) onlyOwnEntries() error {
	entries, bytes := 0, int64(0)
	for _, kind := range []plan.Kind{plan.Preamble, plan.User, plan.Item, kv.Prefix} {
		st := u.memory.store.Stats(kind)
		bytes += st.Bytes
		if kind != kv.Prefix {
			entries += st.Entries
		}
	}
	if known := u.served.Cache.Known(); entries > known {
		return fmt.Errorf("%d entries are in memory, the cache knows %d", entries, known)
	}
	if books := u.memory.pages.Stats(); books.Used > bytes+int64(books.Page)*64 {
		return fmt.Errorf("%d bytes of pages are in use for %d bytes of entries", books.Used, bytes)
	}
	return nil
}

// noneLeft fails if new goroutines remain. On a slow machine they end later than goleak waits.
func noneLeft(t *testing.T, before goleak.Option) {
	t.Helper()
	err := goleak.Find(before)
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
		err = goleak.Find(before)
	}
	if err != nil {
		t.Error(err)
	}
}

// mapped returns the memory in use outside the heap, and the live heap.
func mapped(t *testing.T) (offHeap, inHeap int64) {
	t.Helper()
	for same, tries := 0, 0; same < 3 && tries < 100; tries++ { // what is in use may be changing
		was := offheap.Mapped()
		collect(t)
		if same++; offheap.Mapped() != was {
			same = 0
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return offheap.Mapped(), int64(m.HeapAlloc)
}

// collect returns when garbage was collected and a cleanup has run: those that became due earlier have begun by then.
func collect(t *testing.T) {
	t.Helper()
	ran := make(chan struct{})
	func() {
		garbage := new([64]byte)
		runtime.AddCleanup(garbage, func(ran chan struct{}) { close(ran) }, ran)
	}()
	for limit := time.After(time.Minute); ; {
		runtime.GC()
		select {
		case <-ran:
			return
		case <-limit:
			t.Fatal("a minute without a cleanup")
		case <-time.After(time.Millisecond):
		}
	}
}

// If a new checkpoint fails, the old one continues to serve as if nothing had been requested.
func TestReloadThatFails(t *testing.T) {
	w := newReloadWorld(t)
	broken := modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 128, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 32,
		Inter: 512, Vocab: 4000, Seed: 9}
	for _, name := range []string{"nan", "short"} {
		if err := modeltest.Write(filepath.Join(w.dir, name), broken); err != nil {
			t.Fatal(err)
		}
	}
	spoil(t, filepath.Join(w.dir, "nan", "model.safetensors"), func(data []byte) []byte {
		for i := len(data) / 2; i < len(data); i++ {
			data[i] = 0xff // NaN in every format
		}
		return data
	})
	spoil(t, filepath.Join(w.dir, "short", "model.safetensors"), func(data []byte) []byte { return data[:len(data)/2] })
	w.serve(t)
	before, err := w.answer(0)
	if err != nil {
		t.Fatal(err)
	}
	status, now := w.reload(t, "reload")
	if status != http.StatusConflict || !strings.Contains(now.text, "already serves") {
		t.Errorf("without a new checkpoint: %d %s", status, now.text)
	}
	if log := w.log.String(); !strings.Contains(log, "a reload ended") || strings.Contains(log, "level=ERROR") {
		t.Errorf("that the checkpoint is the same is logged as an error, or not at all:\n%s", log)
	}
	if status, now = w.reload(t, "rollback"); status != http.StatusConflict ||
		!strings.Contains(now.text, "no other checkpoint") {
		t.Errorf("with nothing to go back to: %d %s", status, now.text)
	}
	for name, says := range map[string]string{"nan": "does not answer", "short": "model.safetensors",
		"absent": "no such file"} {
		w.point(t, name)
		status, now := w.reload(t, "reload")
		if status != http.StatusConflict || !strings.Contains(now.text, says) {
			t.Errorf("%s: %d %s, want %q", name, status, now.text, says)
		}
		if after, err := w.answer(0); err != nil || after != before {
			t.Errorf("%s: answers with %s, %v after it; want %s", name, after, err, before)
		}
		if n := len(w.stack.loaded.of("m")); n != 1 {
			t.Errorf("%s: %d checkpoints are loaded", name, n)
		}
	}
	w.point(t, "b")
	w.stack.loader.free = func(compute.Device) int64 { return 1000 }
	if status, now = w.reload(t, "reload"); status != http.StatusConflict ||
		!strings.Contains(now.text, "not enough memory") || !strings.Contains(now.text, "1000 bytes are free") {
		t.Errorf("without memory: %d %s", status, now.text)
	}
	w.onlyOwnEntries(t)
}

// A checkpoint whose KV has another shape needs its own memory beside that of the one that serves. Without room the
// reload is refused and nothing else happens. With room the new one serves.
func TestReloadToAnotherShapeNeedsRoom(t *testing.T) {
	w := newReloadWorld(t, config.Setting{Path: "models[0].host_memory", Value: "32MiB"})
	spec := modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 128, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 32,
		Inter: 512, Vocab: 4000, Seed: 5}
	if err := modeltest.Write(filepath.Join(w.dir, "deep"), spec); err != nil {
		t.Fatal(err)
	}
	w.serve(t)
	before, err := w.answer(0)
	if err != nil {
		t.Fatal(err)
	}
	w.point(t, "deep")
	w.stack.loader.free = func(compute.Device) int64 { return 16 << 20 } // the weights fit, 32 MiB of KV do not
	status, now := w.reload(t, "reload")
	if status != http.StatusConflict || !strings.Contains(now.text, "not enough memory") ||
		!strings.Contains(now.text, "another shape") {
		t.Errorf("without room for another KV: %d %s", status, now.text)
	}
	if after, err := w.answer(0); err != nil || after != before || len(w.stack.loaded.of("m")) != 1 {
		t.Errorf("after a refused reload: %s, %v; want %s of one checkpoint", after, err, before)
	}
	w.stack.loader.free = func(compute.Device) int64 { return 48 << 20 }
	if status, now := w.reload(t, "reload"); status != http.StatusAccepted || now.Reload.State != "done" {
		t.Errorf("with room: %d %s", status, now.text)
	}
}

func spoil(t *testing.T, file string, how func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, how(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A reload that is done has given back the memory of the checkpoint before, though nothing else collects garbage.
func TestReloadGivesMemoryBack(t *testing.T) {
	w := newReloadWorld(t)
	w.serve(t)
	before, _ := mapped(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, name := range []string{"b", "a"} {
		w.point(t, name)
		if status, now := w.reload(t, "reload"); status != http.StatusAccepted || now.Reload.State != "done" {
			t.Fatalf("%d %s", status, now.text)
		}
		now := offheap.Mapped()
		for end := time.Now().Add(30 * time.Second); now > before && time.Now().Before(end); now = offheap.Mapped() {
			time.Sleep(time.Millisecond) // cleanups may still run
		}
		if now > before {
			t.Fatalf("after a reload to %s %d bytes are in use outside of the heap, %d before", name, now, before)
		}
	}
}

// A rollback restores the earlier answers: at once during the trial, and from the folder after it.
func TestReloadAndBack(t *testing.T) {
	w := newReloadWorld(t, config.Setting{Path: "reload.trial_ms", Value: "3600000"})
	w.serve(t)
	a, err := w.answer(1) // item-first
	if err != nil {
		t.Fatal(err)
	}
	w.point(t, "b")
	if status, text, err := w.post("/v1/models/m:reload", ""); err != nil || status != http.StatusAccepted ||
		!strings.Contains(text, `"state":`) {
		t.Fatalf("%d %s %v", status, text, err)
	}
	w.until(t, "trying")
	b, err := w.answer(1)
	if err != nil || a == b {
		t.Fatalf("both checkpoints answer with %s, %v", b, err)
	}
	if status, text, err := w.post("/v1/models/m:reload", ""); err != nil || status != http.StatusConflict ||
		!strings.Contains(text, "is being reloaded") {
		t.Errorf("a second reload: %d %s %v", status, text, err)
	}
	if status, now := w.reload(t, "rollback"); status != http.StatusAccepted || now.Reload.State != "rolled_back" ||
		now.Version != now.Reload.From {
		t.Errorf("a rollback: %d %s", status, now.text)
	}
	if got, err := w.answer(1); err != nil || got != a {
		t.Errorf("after a rollback: %s, %v; want %s", got, err, a)
	}
	w.onlyOwnEntries(t)
}

// After the trial the previous checkpoint is loaded again from its folder, if it is still there. Items that were used
// are computed before it serves.
func TestReloadAndBackFromTheFolder(t *testing.T) {
	w := newReloadWorld(t)
	w.serve(t)
	a, err := w.answer(1) // item-first
	if err != nil {
		t.Fatal(err)
	}
	w.point(t, "b")
	if status, now := w.reload(t, "reload"); status != http.StatusAccepted || now.Reload.State != "done" ||
		now.Reload.Warmed < 12 {
		t.Fatalf("%d %s, want the items of the ranking to be warm", status, now.text)
	}
	path, body := reloadRequest(1)
	status, text, err := w.post(path, body)
	if err != nil || status != http.StatusOK || !strings.Contains(text, `"cached_tokens":36`) {
		t.Errorf("the first ranking after it: %d %s %v, want its items' 36 tokens to be cached", status, text, err)
	}
	if status, now := w.reload(t, "rollback"); status != http.StatusAccepted || now.Reload.State != "done" {
		t.Fatalf("a rollback: %d %s", status, now.text)
	}
	if got, err := w.answer(1); err != nil || got != a {
		t.Errorf("after a rollback: %s, %v; want %s", got, err, a)
	}
	spoil(t, filepath.Join(w.dir, "b", "model.safetensors"),
		func(data []byte) []byte { data[len(data)-1] ^= 1; return data })
	if status, now := w.reload(t, "rollback"); status != http.StatusConflict ||
		!strings.Contains(now.text, "which served before") {
		t.Errorf("a rollback to a folder that has changed: %d %s", status, now.text)
	}
	if got, err := w.answer(1); err != nil || got != a {
		t.Errorf("after a rollback that failed: %s, %v; want %s", got, err, a)
	}
	w.onlyOwnEntries(t)
}

// A reload changes settings, with the checkpoint or without it. A rollback brings them back, also after the trial, and
// the next reload reads the configuration again.
func TestRollbackOfSettings(t *testing.T) {
	for _, folder := range []string{"a", "b"} {
		w := newReloadWorld(t)
		w.serve(t)
		first, err := w.answer(0)
		if err != nil {
			t.Fatal(err)
		}
		version := w.stack.service.Serving("m")
		changed := *w.cfg
		changed.Models = slices.Clone(w.cfg.Models)
		changed.Models[0].Prompt.Instruction = config.Text{Tokens: []int32{7, 9}}
		w.stack.loader.again = func() (*config.Config, error) { return &changed, nil }
		w.point(t, folder)
		var answers []string
		for _, verb := range []string{"reload", "rollback", "reload"} {
			if status, now := w.reload(t, verb); status != http.StatusAccepted || now.Reload.State != "done" {
				t.Fatalf("%s to %s: %d %s", verb, folder, status, now.text)
			}
			got, err := w.answer(0)
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, got)
			if is := w.stack.service.Serving("m"); (is == version) != (verb == "rollback") {
				t.Errorf("%s to %s: version %s, at first it was %s", verb, folder, is, version)
			}
		}
		if answers[0] == first || answers[1] != first || answers[2] != answers[0] {
			t.Errorf("%s: the first answer is %s, after a reload, a rollback and a reload they are %q", folder, first, answers)
		}
	}
}

// until waits until the model's reload is at a state.
func (w *reloadWorld) until(t *testing.T, state string) {
	t.Helper()
	for {
		resp, err := http.Get(w.url + "/v1/models/m")
		if err != nil {
			t.Fatal(err)
		}
		var m reloadedModel
		err = json.NewDecoder(resp.Body).Decode(&m)
		resp.Body.Close()
		if err != nil || m.Reload.State == "failed" {
			t.Fatalf("%+v %v", m, err)
		}
		if m.Reload.State == state {
			return
		}
	}
}
