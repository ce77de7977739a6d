package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"grebe/internal/cli"
)

// runningCluster is a demo with child processes.
type runningCluster struct {
	cmd   *exec.Cmd
	text  string         // its welcome
	urls  []string       // of the nodes
	pids  map[string]int // by node
	lines chan string    // what it prints later; closed at its end
}

func startDemoCluster(t *testing.T, n int) *runningCluster {
	t.Helper()
	cmd := exec.Command(binary, "demo", "--cluster", strconv.Itoa(n), "--listen", "127.0.0.1:0", "--data", demoData)
	// a demo that is killed leaves its files
	cmd.Env, cmd.Stderr = append(slices.Clone(unhurried), "TMPDIR="+t.TempDir()), os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	defer patience(t, cmd)()
	r := &runningCluster{cmd: cmd, pids: map[string]int{}, lines: make(chan string, 100)}
	node := regexp.MustCompile(`^  (n\d+) +(http://\S+)/ +pid (\d+)$`)
	lines := bufio.NewScanner(pipe)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Ctrl-C") {
		r.text += lines.Text() + "\n"
		if m := node.FindStringSubmatch(lines.Text()); m != nil {
			r.urls = append(r.urls, m[2])
			r.pids[m[1]], _ = strconv.Atoi(m[3])
		}
	}
	go func() {
		defer close(r.lines)
		for lines.Scan() {
			r.lines <- lines.Text()
		}
		_ = cmd.Wait()
	}()
	if len(r.urls) != n {
		t.Fatalf("%d nodes in\n%s", len(r.urls), r.text)
	}
	return r
}

// suggested returns the first line of the welcome that contains a text.
func (r *runningCluster) suggested(t *testing.T, part string) string {
	t.Helper()
	for line := range strings.Lines(r.text) {
		if strings.HasPrefix(line, "  ") && strings.Contains(line, part) {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("no %q in\n%s", part, r.text)
	return ""
}

// busy ranks at some nodes until stop is called, and counts answers that are not good.
func busy(urls ...string) (asked, failed *atomic.Int64, stop func()) {
	asked, failed = new(atomic.Int64), new(atomic.Int64)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, url := range urls {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
				user := []string{"ana", "bo", "chris", "dora", "emil", "fay"}[i%6]
				body := fmt.Sprintf(`{"user": {"id": %q}, "candidates": [{"id": "i1"}, {"id": "i%d"}, {"id": "i9"}]}`, user, 2+i%7)
				resp, err := http.Post(url+"/v1/rank", "application/json", strings.NewReader(body))
				asked.Add(1)
				if err != nil {
					failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					failed.Add(1)
				}
			}
		})
	}
	return asked, failed, func() {
		close(done)
		wg.Wait()
	}
}

// requestCharts is true when both charts of requests, by node and by reason, have drawn an area. There need not be
// more of them: the router may send all users to one node.
const requestCharts = `[...document.querySelectorAll("#fleet-charts figure")]
	.filter(f => f.querySelector("path.area")).length >= 2`

// Someone follows the demo's text: they watch the Fleet page, kill a node, start it again, drain it, and press Ctrl-C.
// No request at another node fails.
func TestDemoCluster(t *testing.T) {
	r := startDemoCluster(t, 3)
	ctx, complaints := browser(t, r.urls[0])
	asked, failed, stop := busy(r.urls[0], r.urls[2])
	stopOnce := sync.OnceFunc(stop)
	defer stopOnce()
	state := func(node string, want ...string) chromedp.Action {
		script := fmt.Sprintf(`[...document.querySelectorAll("#fleet .node")].some(n =>
			n.querySelector("b").textContent === %q && %q.split("|").some(s => n.querySelector(".state").textContent === s))`,
			node, strings.Join(want, "|"))
		return chromedp.Poll(script, nil, chromedp.WithPollingTimeout(0))
	}
	light := emulation.SetEmulatedMedia().WithFeatures(
		[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}})
	err := chromedp.Run(ctx, chromedp.EmulateViewport(1280, 900), light, chromedp.Navigate(r.suggested(t, "/#fleet")),
		state("n1", "ACTIVE"), state("n2", "ACTIVE"), state("n3", "ACTIVE"),
		chromedp.Poll(requestCharts, nil, chromedp.WithPollingTimeout(0)))
	if err != nil {
		t.Fatalf("%v; %v", err, complaints())
	}
	kill := r.suggested(t, "# n2")
	if !strings.HasPrefix(kill, fmt.Sprintf("kill -9 %d ", r.pids["n2"])) {
		t.Fatalf("the text says %q, n2 is %d", kill, r.pids["n2"])
	}
	if out, err := exec.Command("sh", "-c", kill).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if said := <-r.lines; !strings.Contains(said, "n2 (pid") || !strings.Contains(said, "killed") {
		t.Errorf("the demo says %q", said)
	}
	if err := chromedp.Run(ctx, state("n2", "SUSPECT", "GONE"), state("n2", "GONE"), shoot("fleet.png"),
		picture("dashboard-fleet.png", 765), chromedp.EmulateViewport(1280, 900)); err != nil {
		t.Fatalf("%v; %v", err, complaints())
	}
	again := exec.Command("sh", "-c", "exec "+r.suggested(t, "serve -c"))
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = again.Process.Kill()
		_ = again.Wait()
	})
	if err := chromedp.Run(ctx, state("n2", "ACTIVE")); err != nil {
		t.Fatalf("%v; %v", err, complaints())
	}
	for _, step := range [][2]string{{"cluster drain", "ACTIVE · drained"}, {"cluster undrain", "ACTIVE"}} {
		if out, err := exec.Command("sh", "-c", r.suggested(t, step[0])).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", step[0], err, out)
		}
		if err := chromedp.Run(ctx, state("n2", step[1])); err != nil {
			t.Fatalf("%v; %v", err, complaints())
		}
	}
	stopOnce()
	if failed.Load() > 0 || asked.Load() < 10 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
	r.end(t)
}

// end presses Ctrl-C. The demo and its children end.
func (r *runningCluster) end(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	defer patience(t, r.cmd)()
	for range r.lines { // until its end
	}
	if code := r.cmd.ProcessState.ExitCode(); code != cli.Done {
		t.Errorf("the demo exits with %d", code)
	}
	for node, pid := range r.pids {
		if alive(pid) {
			t.Errorf("%s (pid %d) still runs", node, pid)
		}
	}
}

// alive reports whether a process runs. One that nobody has waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(after, "Z")
}

// A demo that is killed takes its children with it, and one that cannot start says why.
func TestDemoClusterEnds(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells children that their parent was killed")
	}
	_, errs, code := grebe(t, "demo", "--once", "--cluster", "2")
	if code != cli.Misuse || !strings.Contains(errs, "--once") {
		t.Errorf("exits with %d and says %q", code, errs)
	}
	r := startDemoCluster(t, 2)
	taken := strings.TrimPrefix(r.urls[0], "http://")
	_, errs, code = grebe(t, "demo", "--cluster", "2", "--listen", taken, "--data", demoData)
	if code != cli.Failed || !strings.Contains(errs, "n1 ended before it served") || !strings.Contains(errs, "in use") {
		t.Errorf("exits with %d and says %q", code, errs)
	}
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for node, pid := range r.pids {
		for until := late(t); alive(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s (pid %d) still runs", node, pid)
			}
		}
	}
}
