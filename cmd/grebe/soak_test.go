package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/client"
	"grebe/cmd/grebe/internal/demo"
)

// TestSoak asks at 80 % of what the server can do, stops the server in the middle with SIGTERM and starts it again,
// behind clients that ask again when a request was not taken: no request fails, memory stays flat, no goroutine is
// left behind. GREBE_SOAK says how long; `make soak` takes ten minutes.
func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("GREBE_SOAK"))
	if err != nil {
		t.Skip("takes minutes: GREBE_SOAK=10m, or `make soak`")
	}
	addr, admin, data := freeAddress(t), freeAddress(t), t.TempDir()
	run := func() *running {
		return start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", addr, "--admin-listen", admin,
			"--grpc-listen=", "--data-dir", data, "--slo-ms", "2000")
	}
	r := run()
	c, err := client.New("http://"+addr, client.Options{Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rate := 0.8 * capacity(t, c)
	t.Logf("asking %.0f times a second", rate)
	var asked, failed atomic.Int64
	load := func(ctx context.Context) {
		var under sync.WaitGroup
		next := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			next = next.Add(time.Duration(float64(time.Second) / rate))
			time.Sleep(time.Until(next))
			under.Go(func() {
				asked.Add(1)
				if err := ask(context.Background(), c, i); err != nil {
					if failed.Add(1) < 5 {
						t.Errorf("request %d: %v", i, err)
					}
				}
			})
		}
		under.Wait()
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		load(ctx)
	}()
	time.Sleep(lasts / 4)
	before := look(t, r, admin)
	time.Sleep(lasts / 4)
	if code := r.stop(t); code != exitDone {
		t.Errorf("after SIGTERM the server exits with %d", code)
	}
	r = run()
	time.Sleep(lasts / 4)
	early := look(t, r, admin)
	time.Sleep(lasts / 4)
	late := look(t, r, admin)
	stop()
	<-done
	c.Close()
	time.Sleep(2 * time.Second)
	idle := look(t, r, admin)
	t.Logf("%d requests, %d failed; memory %d MiB before the restart, %d and %d MiB after; goroutines %d under load, %d idle",
		asked.Load(), failed.Load(), before.resident>>20, early.resident>>20, late.resident>>20, late.goroutines, idle.goroutines)
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	if grown := late.resident - early.resident; grown > 64<<20 {
		t.Errorf("memory grew by %d MiB in the last quarter", grown>>20)
	}
	if idle.goroutines > 60 {
		t.Errorf("%d goroutines while nobody asks", idle.goroutines)
	}
	r.stop(t)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// ask sends one request of a mixture.
func ask(ctx context.Context, c *client.Client, i int) error {
	user := client.User{ID: []string{"ana", "bo", "chris"}[i%3]}
	if i%7 == 0 {
		_, err := c.Recommend(ctx, &client.RecommendRequest{User: user, N: 5, BeamWidth: 16})
		return err
	}
	ids := make([]string, 20)
	for j := range ids {
		ids[j] = fmt.Sprint("i", 1+(i*7+j)%48)
	}
	_, err := c.Rank(ctx, &client.RankRequest{User: user, Candidates: client.IDs(ids...)})
	return err
}

// capacity returns how many requests a second a few askers get answered.
func capacity(t *testing.T, c *client.Client) float64 {
	t.Helper()
	const lasts = 4 * time.Second
	var n atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(lasts)
	for k := range 8 {
		wg.Go(func() {
			for i := k; time.Now().Before(end); i += 8 {
				if err := ask(t.Context(), c, i); err != nil {
					t.Errorf("warm-up: %v", err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / lasts.Seconds()
}

type looked struct{ resident, goroutines int64 }

var profileTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// look reads the memory and goroutines of a server.
func look(t *testing.T, r *running, admin string) looked {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := profileTotal.FindStringSubmatch(string(body))
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.cmd.Process.Pid))
	if err != nil || m == nil {
		t.Skipf("this system does not tell memory or goroutines: %v", err)
	}
	goroutines, _ := strconv.ParseInt(m[1], 10, 64)
	pages, _ := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	return looked{pages * int64(os.Getpagesize()), goroutines}
}
