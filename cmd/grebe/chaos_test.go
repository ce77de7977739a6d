package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grebe/app/apptest"
	"grebe/internal/cli"
)

// TestChaos is a month of production in minutes: a server with far too little memory and a small disk tier is asked
// everything at once by clients that change what they own, go away, read slowly and are in a hurry, while an operator
// reloads models, goes back and forth between versions of the catalog, damages the cache's files, fills the disk, stops
// the server and kills it. Every answer has to be the one that a server without caches gives for the same user, items
// and checkpoint, bit for bit; the accounts have to add up; nothing may leak, and nothing may be logged as an error
// that is none.
//
// GREBE_CHAOS says how long, GREBE_CHAOS_SEED which of some configurations and what happens when, GREBE_BINARY names a
// binary that was built with -race, GREBE_CHAOS_DIR a folder for the data on a file system of its own, small enough to
// be filled.
func TestChaos(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("GREBE_CHAOS"))
	if err != nil {
		t.Skip("takes minutes: GREBE_CHAOS=5m, or `make chaos`")
	}
	c := newChaos(t)
	c.start()
	c.base = c.version()
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var clients sync.WaitGroup
	for i := range 6 {
		clients.Go(func() { c.client(ctx, i) })
	}
	c.operate(ctx)
	clients.Wait()
	c.calm("at the end")
	c.end(syscall.SIGTERM)
	c.tell()
}

// chaos is the server, the one that it is compared with, and what was seen.
type chaos struct {
	*testing.T
	dir, data string
	addr      string
	admin     string
	plain     string // address of the server without caches
	seed      uint64
	texts     string   // a setting of all language models; may be empty
	own       []string // settings of the server with caches
	rand      *rand.Rand

	// Clients hold gate while they ask; the operator takes it to have silence.
	gate sync.RWMutex
	cmd  *exec.Cmd
	log  chan struct{} // closed when the log has ended
	full atomic.Bool   // the disk is, or was since the last start
	down atomic.Bool   // the server stops, or is not there yet
	ends atomic.Int64  // of processes
	tale []string      // texts of the demo's users
	base string        // the catalog's first version

	pinned atomic.Bool  // models may use an older version of the catalog
	pins   atomic.Int64 // how often they were told to

	mu     sync.Mutex
	counts map[string]int
	made   map[string][]string // recommendations by version and request: one answer per checkpoint
	life   life                // since the last start
	serves string              // version of shop's checkpoint
	first  map[string]looked   // by shop's checkpoint: it shares its memory with another model, or has its own
}

// life is what clients saw of one process.
type life struct{ asked, unsure, tokens int }

func newChaos(t *testing.T) *chaos {
	dir := t.TempDir()
	c := &chaos{T: t, dir: dir, data: os.Getenv("GREBE_CHAOS_DIR"), addr: apptest.FreeAddress(t),
		admin:  apptest.FreeAddress(t),
		counts: map[string]int{}, made: map[string][]string{}}
	c.seed, _ = strconv.ParseUint(os.Getenv("GREBE_CHAOS_SEED"), 10, 64)
	c.rand = rand.New(rand.NewPCG(1, c.seed))
	switch c.seed % 4 {
	case 1:
		c.own = []string{"workers=2", "cache.policy=lru", "models[0].blend.auto=true", "cache.host_memory=64MiB"}
	case 2:
		c.texts = "kv_dtype=f32"
	case 3:
		c.texts = "dtype=f32"
		c.own = []string{"cache.policy=sieve", "cache.host_memory=9MiB", "cache.disk=6MiB", "schedule.policy=bat"}
	}
	if c.data == "" {
		c.data = filepath.Join(dir, "data")
	}
	if _, errs, code := grebe(t, "demo", "--once", "--data", dir); code != cli.Done {
		t.Fatal(errs)
	}
	shell := exec.Command("bash", "-euc", `
cp -r lm lm-2
sed -i 's/"rope_theta": 10000.0/"rope_theta": 9900.0/' lm-2/config.json
! cmp -s lm/config.json lm-2/config.json
ln -s lm current
sed '0,/path: .\/lm/s//path: .\/current/; s/^cache:.*/cache: {host_memory: 24MiB, disk: 24MiB}/' grebe.yaml > chaos.yaml
echo "data_dir: $0" >> chaos.yaml
sed 's/host_memory: 24MiB/host_memory: 96MiB/' chaos.yaml > index.yaml
{ sed 's/^cache:.*/cache: {host_memory: 0}/; /^catalog:/d' grebe.yaml; } > plain.yaml
sed -n '/- name: shop$/,/- name: shop-pointwise/p' grebe.yaml |
  sed '$d; s/name: shop$/name: shop-2/; s/path: .\/lm/path: .\/lm-2/' > second
sed -i '/^models:/r second' plain.yaml
echo 'catalog: {items: items.ndjson, users: users.ndjson}' >> plain.yaml`, c.data)
	shell.Dir = dir
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, errs, code := grebe(t, "index", "-c", filepath.Join(dir, "index.yaml"), "--model", "shop", "--prototypes",
		"--prototype-least", "1"); code != cli.Done {
		t.Fatalf("index: %s%s", out, errs)
	}
	for line := range bytes.Lines(must(os.ReadFile(filepath.Join(dir, "users.ndjson")))) {
		var u struct{ Text string }
		if err := json.Unmarshal(line, &u); err != nil {
			t.Fatal(err)
		}
		c.tale = append(c.tale, u.Text)
	}
	plain := start(t, append([]string{"serve", "-c", filepath.Join(dir, "plain.yaml"), "--listen", "127.0.0.1:0",
		"--admin-listen=", "--grpc-listen=",
		"--data-dir", t.TempDir(), "--slo-ms", "60000", "--device", "cpu"}, c.set(3)...)...)
	c.plain = plain.http
	return c
}

// start runs the server and waits until it is ready.
func (c *chaos) start() {
	c.Helper()
	c.gate.Lock()
	defer c.gate.Unlock()
	args := append([]string{"serve", "-c", filepath.Join(c.dir, "chaos.yaml"), "--listen", c.addr,
		"--admin-listen", c.admin, "--grpc-listen=",
		"--data-dir", c.data, "--slo-ms", "30000", "--device", "cpu", "--log-format", "json", "--set", "reload.trial_ms=500",
		"--set", "limits.shutdown_ms=5000"}, append(c.set(2), flags(append(c.own, "catalog.versions=200"))...)...)
	c.cmd = exec.Command(binary, args...)
	c.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GREBE_") })
	pipe, err := c.cmd.StderrPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = c.cmd.Process.Kill() })
	c.log = make(chan struct{})
	go c.read(pipe, c.log)
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if code, _, err := c.send(context.Background(), "GET", "http://"+c.addr+"/readyz", nil); err == nil &&
			code == http.StatusOK {
			break
		}
		if time.Now().After(late) {
			c.Fatal("the server is not ready after a minute")
		}
	}
	c.full.Store(false)
	c.down.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life, c.first = life{}, map[string]looked{}
	c.counts["starts"]++
}

// read goes through the server's log. Only what the operator caused may be there as an error.
func (c *chaos) read(pipe io.Reader, done chan struct{}) {
	defer close(done)
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct{ Level, Msg string }
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err != nil: // a race, a panic, or what the process says last
			if text := lines.Text(); !c.full.Load() || strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic") {
				c.Errorf("the server says: %s", text)
			}
		case l.Level == "ERROR" || l.Level == "WARN":
			c.count("logged: " + l.Level + " " + l.Msg)
			if l.Level == "ERROR" && !c.full.Load() {
				c.Errorf("logged as an error: %.600s", lines.Text())
			}
		}
	}
}

// end stops the server, and checks how it ends.
func (c *chaos) end(how os.Signal) {
	c.Helper()
	c.down.Store(true)
	c.ends.Add(1)
	began := time.Now()
	_ = c.cmd.Process.Signal(how)
	late := time.AfterFunc(30*time.Second, func() {
		c.Errorf("the server does not stop: its goroutines follow")
		_ = c.cmd.Process.Signal(syscall.SIGQUIT)
	})
	defer late.Stop()
	<-c.log
	err := c.cmd.Wait()
	if how == syscall.SIGTERM && err != nil && !c.full.Load() {
		c.Errorf("after SIGTERM the server ends with %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		c.Errorf("stopping took %v, the limit is 5 s", took)
	}
}

// operate does to the server what happens to servers, until the time is up.
func (c *chaos) operate(ctx context.Context) {
	wait := func(least, most time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(least + rand.N(most-least)):
		}
	}
	checkpoint := 0
	for ctx.Err() == nil {
		wait(300*time.Millisecond, 2*time.Second)
		switch what := c.rand.IntN(16); what {
		case 0, 1:
			c.pin("activate the first version", "/v1/catalog:activate", map[string]any{"version": c.base})
		case 2:
			c.pin("go back a version", "/v1/catalog:rollback", map[string]any{})
		case 3:
			if c.order("follow the catalog", "/v1/catalog:activate", map[string]any{"version": "auto"}) == http.StatusOK {
				c.pinned.Store(false)
			}
		case 4, 5:
			checkpoint = 1 - checkpoint
			_ = os.Remove(filepath.Join(c.dir, "next"))
			_ = os.Symlink([]string{"lm", "lm-2"}[checkpoint], filepath.Join(c.dir, "next"))
			if err := os.Rename(filepath.Join(c.dir, "next"), filepath.Join(c.dir, "current")); err != nil {
				c.Fatal(err)
			}
			c.order("reload", "/v1/models/shop:reload", map[string]any{"wait": c.rand.IntN(2) == 0})
		case 6:
			c.order("roll a model back", "/v1/models/shop:rollback", map[string]any{"wait": c.rand.IntN(2) == 0})
		case 7:
			_ = c.cmd.Process.Signal(syscall.SIGHUP)
			c.count("SIGHUP")
		case 8, 9:
			c.damage(false)
		case 10:
			c.damage(true)
		case 11:
			c.fill(ctx, wait)
		case 12:
			c.end(syscall.SIGTERM)
			c.count("SIGTERM")
			c.start()
		case 13:
			c.end(syscall.SIGKILL)
			c.count("SIGKILL")
			c.start()
		default:
			c.calm("in between")
		}
	}
}

func (c *chaos) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// pin has models use an older version of the catalog. Rankings then have its items and texts too, so from here on
// clients do not name items that they changed.
func (c *chaos) pin(what, path string, body any) {
	c.pinned.Store(true)
	c.pins.Add(1)
	c.order(what, path, body)
}

// order asks for something that only the operator asks for, and returns the status.
func (c *chaos) order(what, path string, body any) int {
	code, _, err := c.send(context.Background(), "POST", "http://"+c.addr+path, body)
	if err != nil || code == http.StatusInternalServerError {
		c.Errorf("%s: %d, %v", what, code, err)
	}
	c.count(fmt.Sprint(what, " ", code))
	return code
}

// version returns the catalog's.
func (c *chaos) version() string {
	_, body, err := c.send(context.Background(), "GET", "http://"+c.addr+"/v1/catalog", nil)
	var v struct{ Version string }
	if err != nil || json.Unmarshal(body, &v) != nil {
		c.Fatalf("catalog: %v, %s", err, body)
	}
	return v.Version
}

// damage flips bits of the cache's files, or cuts one.
func (c *chaos) damage(cut bool) {
	if done := apptest.DamageKV(c.rand, c.data, cut); done != "" {
		c.count(done)
	}
}

// fill leaves no room on the disk for a while, then starts the server again.
func (c *chaos) fill(ctx context.Context, wait func(least, most time.Duration)) {
	if os.Getenv("GREBE_CHAOS_DIR") == "" {
		return
	}
	c.full.Store(true)
	name := filepath.Join(c.data, "filler")
	if f, err := os.Create(name); err == nil {
		for zeros := make([]byte, 1<<14); err == nil; {
			_, err = f.Write(zeros)
		}
		f.Close()
	}
	wait(time.Second, 3*time.Second)
	_ = os.Remove(name)
	c.count("filled the disk")
	c.end(syscall.SIGTERM)
	c.start()
}

// calm waits until nobody asks, and checks the server's accounts and what it holds.
func (c *chaos) calm(when string) {
	c.gate.Lock()
	defer c.gate.Unlock()
	time.Sleep(1500 * time.Millisecond) // those who went away
	m, now, err := c.look()
	// the checkpoint before is closed after the new one answers
	for again := 0; err == nil && again < 10 && c.more(now, m); again++ {
		time.Sleep(time.Second)
		m, now, err = c.look()
	}
	if err != nil {
		c.Errorf("metrics: %v", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ranked := 0
	for name, v := range m {
		if strings.HasPrefix(name, "grebe_requests_total{") && strings.Contains(name, `op="rank"`) {
			ranked += int(v)
		}
	}
	if ranked < c.life.asked || ranked > c.life.asked+c.life.unsure {
		c.Errorf("%s: the server counts %d rankings, clients %d and %d that they did not wait for", when, ranked,
			c.life.asked, c.life.unsure)
	}
	tokens := 0
	for name, v := range m {
		if strings.HasPrefix(name, "grebe_tokens_total{") && strings.Contains(name, `op="rank"`) {
			tokens += int(v)
		}
	}
	if tokens < c.life.tokens || c.life.unsure == 0 && tokens > c.life.tokens {
		c.Errorf("%s: the server counts %d tokens of rankings, answers %d", when, tokens, c.life.tokens)
	}
	first, ok := c.first[c.serves]
	if !ok {
		first = now
		c.first[c.serves] = now
	}
	c.Logf("%s: %d rankings, %d tokens; goroutines %d (first %d), files %d (%d), heap %d (%d) MiB, outside it %d (%d)",
		when, ranked, tokens,
		now.goroutines, first.goroutines, now.files, first.files, now.heap>>20, first.heap>>20, now.outside>>20,
		first.outside>>20)
	if c.more(now, m) {
		c.Errorf("%s: the server holds more and more", when)
	}
	c.counts["calm moments"]++
}

// look returns the server's metrics and what it holds after its garbage was collected.
func (c *chaos) look() (map[string]float64, looked, error) {
	for range 2 { // what the first round finds is given back after it
		_, _, _ = c.send(context.Background(), "GET", "http://"+c.admin+"/debug/pprof/heap?gc=1", nil)
	}
	_, body, err := c.send(context.Background(), "GET", "http://"+c.addr+"/metrics", nil)
	m := metricsOf(string(body))
	_, models, _ := c.send(context.Background(), "GET", "http://"+c.addr+"/v1/models", nil)
	var list struct{ Data []struct{ Version string } }
	if err := json.Unmarshal(models, &list); err != nil || len(list.Data) == 0 {
		return m, looked{}, fmt.Errorf("models: %v, %s", err, models)
	}
	c.serves = list.Data[0].Version
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
	return m, looked{heap: int64(m["go_memstats_heap_alloc_bytes"]), outside: int64(m["grebe_offheap_bytes"]),
		goroutines: int64(m["go_goroutines"]), files: int64(len(files))}, err
}

// more reports whether a server holds more than when it was looked at first with the same checkpoint. While it reloads
// there are two. A model that shared its tables of KV with another one has its own from its first reload on: 140 MiB.
func (c *chaos) more(now looked, m map[string]float64) bool {
	for name, v := range m {
		if strings.HasPrefix(name, "grebe_model_reloading") && v > 0 {
			return false
		}
	}
	first, ok := c.first[c.serves]
	return ok && (now.goroutines > first.goroutines+25 || now.files > first.files+25 || now.heap > first.heap+204<<20 ||
		now.outside > first.outside+128<<20)
}

// metricsOf reads Prometheus' format.
func metricsOf(text string) map[string]float64 {
	m := map[string]float64{}
	for line := range strings.Lines(text) {
		if i := strings.LastIndexByte(strings.TrimSpace(line), ' '); i > 0 && line[0] != '#' {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line)[i+1:], 64)
			m[line[:i]] = v
		}
	}
	return m
}

// send sends one request.
func (c *chaos) send(ctx context.Context, method, url string, body any) (int, []byte, error) {
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

func (c *chaos) tell() {
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		c.Logf("%7d %s", c.counts[what], what)
	}
}

// set returns flags for the first models, which read texts.
func (c *chaos) set(models int) []string {
	var settings []string
	for i := 0; i < models && c.texts != ""; i++ {
		settings = append(settings, fmt.Sprintf("models[%d].%s", i, c.texts))
	}
	return flags(settings)
}

func flags(settings []string) (out []string) {
	for _, s := range settings {
		out = append(out, "--set", s)
	}
	return out
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}
