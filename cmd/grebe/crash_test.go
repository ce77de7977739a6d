package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"grebe/internal/cli"
)

// kills is how often the crash tests kill the process: a few times, or as GREBE_CRASHES says.
func kills(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("GREBE_CRASHES"))
	if err != nil {
		n = 4
	}
	t.Logf("%d kills", n)
	return n
}

// crashSite is a folder with the demo's checkpoint, a larger catalog and a cache on disk.
func crashSite(t *testing.T, items int) (config string) {
	t.Helper()
	dir := t.TempDir()
	var catalog, users bytes.Buffer
	r := rand.New(rand.NewPCG(5, 5))
	words := strings.Fields("red blue small large old new garden kitchen lamp chair book of birds and boats for early " +
		"mornings")
	text := func(n int) string {
		out := make([]string, n)
		for i := range out {
			out[i] = words[r.IntN(len(words))]
		}
		return strings.Join(out, " ")
	}
	for i := range items {
		fmt.Fprintf(&catalog, `{"id":"c%d","text":%q,"identifier":%d}`+"\n", i, text(6), i%500)
	}
	for i := range 20 {
		fmt.Fprintf(&users, `{"id":"u%d","text":%q}`+"\n", i, text(60))
	}
	config = filepath.Join(dir, "grebe.yaml")
	yaml := fmt.Sprintf(`models:
  - name: demo
    path: %s
    prompt: {lead_in: "Offers: ", instruction: "Which one?"}
cache: {host_memory: 8MiB, disk: 1GiB}
slo_ms: 20000
data_dir: ./data
catalog: {items: items.ndjson, users: users.ndjson}
`, filepath.Join(demoData, "checkpoint"))
	for name, data := range map[string][]byte{"items.ndjson": catalog.Bytes(), "users.ndjson": users.Bytes(),
		"grebe.yaml": []byte(yaml)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

var alreadyThere = regexp.MustCompile(`(\d+) of (\d+) items computed, (\d+) already there`)

// indexed runs grebe index to its end and returns how many items it found and how many it computed.
func indexed(t *testing.T, config string) (found, computed int) {
	t.Helper()
	out, errs, code := grebe(t, "index", "-c", config)
	m := alreadyThere.FindStringSubmatch(out)
	if code != cli.Done || m == nil {
		t.Fatalf("grebe index exits with %d and says %s%s", code, out, errs)
	}
	computed, _ = strconv.Atoi(m[1])
	found, _ = strconv.Atoi(m[3])
	return found, computed
}

// Killed at any moment, grebe index leaves a store that the next run reads and goes on from, and that
// gives the answers of one that was never killed.
func TestKilledIndex(t *testing.T) {
	n := kills(t)
	items := 1000 + 500*n // more than is computed before the last kill
	config := crashSite(t, items)
	r := rand.New(rand.NewPCG(6, 6))
	survived := 0
	for range n {
		cmd := exec.Command(binary, "index", "-c", config)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(30+r.IntN(400)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	found, computed := indexed(t, config)
	if found+computed != items {
		t.Errorf("%d items found and %d computed, of %d", found, computed, items)
	}
	survived += found
	if found, computed = indexed(t, config); found != items || computed != 0 {
		t.Errorf("after a whole run %d items are found and %d computed, of %d", found, computed, items)
	}
	t.Logf("%d of %d items survived the kills", survived, items)
	sameAnswers(t, config, 5)
}

// Killed at any moment while it answers, a server starts again, answers as one that was never killed,
// and finds what was complete.
func TestKilledServer(t *testing.T) {
	config := crashSite(t, 300)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range kills(t) {
		s := startServer(t, config)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					_, _ = s.rank(n, []string{"user", "item", "auto"}[n%3]) // fails when the server dies
				}
			}
		}()
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		s.kill()
		close(stop)
		<-done
		if i%10 == 0 {
			sameAnswers(t, config, 3)
		}
	}
	leaveSomething(t, config)
	if reused := sameAnswers(t, config, 10); reused == 0 {
		t.Error("nothing was reused from before the last start")
	}
}

// leaveSomething kills a server as soon as something of its rankings is on disk; on a slow machine all others may have
// been killed before.
func leaveSomething(t *testing.T, config string) {
	t.Helper()
	s := startServer(t, config)
	defer s.kill()
	for n := 0; !onDisk.Match(s.call(http.MethodGet, "/metrics", "")); n++ {
		if _, err := s.rank(n%10, "item"); err != nil {
			t.Fatal(err)
		}
	}
}

var onDisk = regexp.MustCompile(`grebe_kv_entries{kind="[a-z]*",tier="disk"} [1-9]`)

// sameAnswers compares rankings of a server on config's data with those of one that has none, and
// returns how many tokens came from disk.
func sameAnswers(t *testing.T, config string, requests int) (fromDisk int) {
	t.Helper()
	fresh := startServer(t, config, "--data-dir", t.TempDir(), "--set", "cache.disk=0")
	defer fresh.kill()
	s := startServer(t, config)
	defer s.kill()
	for n := range requests {
		got, err := s.rank(n, "item")
		if err != nil {
			t.Fatal(err)
		}
		want, err := fresh.rank(n, "item")
		if err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(got.Results)
		b, _ := json.Marshal(want.Results)
		if !bytes.Equal(a, b) {
			t.Fatalf("request %d: %s, want %s", n, a, b)
		}
		fromDisk += got.Usage.BySource.Disk
	}
	return fromDisk
}

type crashServer struct {
	cmd  *exec.Cmd
	url  string
	log  crashLog
	read chan struct{} // closed when the log has ended
	dead sync.Once
}

// crashLog is what a server logs, while it runs too.
type crashLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *crashLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(line + "\n")
}

func (l *crashLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startServer serves config on a free port.
func startServer(t *testing.T, config string, args ...string) *crashServer {
	t.Helper()
	return startBinary(t, binary, config, args...)
}

// startBinary is startServer with a grebe of another version.
func startBinary(t *testing.T, binary, config string, args ...string) *crashServer {
	t.Helper()
	args = append([]string{"serve", "-c", config, "--listen", "127.0.0.1:0", "--admin-listen=", "--grpc-listen=",
		"--log-format", "json"}, args...)
	cmd := exec.Command(binary, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GREBE_") }) // for tests
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer patience(t, cmd)()
	s := &crashServer{cmd: cmd, read: make(chan struct{})}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		s.log.add(lines.Text())
		var l struct{ Msg, HTTP string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			s.url = "http://" + l.HTTP
			go func() {
				defer close(s.read)
				for lines.Scan() {
					s.log.add(lines.Text())
				}
			}()
			return s
		}
	}
	close(s.read)
	s.kill()
	t.Fatalf("the server does not become ready: %s", s.log.String())
	return nil
}

// kill may be called by a timer and by the test at the same time; two Waits at once would wait for each other's end for
// ever.
func (s *crashServer) kill() {
	s.dead.Do(func() {
		_ = s.cmd.Process.Kill()
		<-s.read // Wait closes the pipe
		_ = s.cmd.Wait()
	})
}

type crashAnswer struct {
	Results []struct {
		ID    string
		Score float64
	}
	Usage struct {
		BySource struct{ Disk int } `json:"by_source"`
	}
}

// rank asks for the n-th ranking of the site.
func (s *crashServer) rank(n int, prefix string) (*crashAnswer, error) {
	var c []string
	for i := range 10 {
		c = append(c, fmt.Sprintf(`{"id":"c%d"}`, (n*7+i*29)%300))
	}
	body := fmt.Sprintf(`{"user":{"id":"u%d"},"prefix":%q,"candidates":[%s]}`, n%20, prefix, strings.Join(c, ","))
	resp, err := http.Post(s.url+"/v1/rank", "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, data)
	}
	var a crashAnswer
	return &a, json.Unmarshal(data, &a)
}
