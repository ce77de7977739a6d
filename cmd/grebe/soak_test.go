package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/app/apptest"
	"grebe/client"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// TestSoak asks at 80 % of what the server can do, stops the server in the middle with SIGTERM and starts it again,
// behind clients that ask again when a request was not taken: no request fails, memory stays flat once it is warm (see
// judge), no goroutine is left behind. GREBE_SOAK says how long; `make soak` takes ten minutes.
func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("GREBE_SOAK"))
	if err != nil {
		t.Skip("takes minutes: GREBE_SOAK=10m, or `make soak`")
	}
	addr, admin, data := apptest.FreeAddress(t), apptest.FreeAddress(t), t.TempDir()
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
	calm := look(t, r, admin)
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
	warm, end := halves(t, r, admin, lasts/2)
	judge(t, "before the restart", warm, end)
	if code := r.stop(t); code != cli.Done {
		t.Errorf("after SIGTERM the server exits with %d", code)
	}
	r = run()
	warm, end = halves(t, r, admin, lasts/2)
	judge(t, "after the restart", warm, end)
	stop()
	<-done
	c.Close()
	idle := look(t, r, admin)
	for late := time.Now().Add(10 * time.Second); idle.goroutines > calm.goroutines &&
		time.Now().Before(late); idle = look(t, r, admin) {
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("%d requests, %d failed", asked.Load(), failed.Load())
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	t.Logf("goroutines: %d before the load, %d under it, %d after it", calm.goroutines, end.goroutines, idle.goroutines)
	if idle.goroutines > calm.goroutines+4 {
		t.Errorf("%d goroutines after the load, %d before it", idle.goroutines, calm.goroutines)
	}
	r.stop(t)
}

const (
	// slack is how much more may live on the heap, and be mapped outside it, at the end than after the warm-up: 400 bytes
	// a request are more, in ten minutes at 100 requests a second. Requests in flight when one looks are a few MiB.
	slack = 8 << 20
	// touched is how much more may be in use and resident: pages of the KV pool and of large tables stay resident once
	// they were used.
	touched = 32 << 20
)

// judge fails if what a server holds grew after its first third.
//
// What is resident counts without the pages that Go has freed and not given back to the system. Go gives them back in
// the background, over seconds, so that what is resident after a collection depends on when one looks: 346 MiB, and 209
// two seconds later. All that is resident has a bound of its own.
func judge(t *testing.T, when string, warm, end looked) {
	t.Helper()
	t.Logf("%s: after a third of the time and at the end: alive on the heap %d and %d MiB, mapped outside it %d and %d, "+
		"resident %d and %d, of that free on the heap %d and %d; pool %d of %d MiB in use", when, warm.heap>>20, end.heap>>20,
		warm.outside>>20, end.outside>>20, warm.resident>>20, end.resident>>20, warm.free()>>20, end.free()>>20, end.used>>20,
		end.pool>>20)
	if end.heap-warm.heap > slack {
		t.Errorf("%s: %d MiB more are alive on the heap", when, (end.heap-warm.heap)>>20)
	}
	if end.outside-warm.outside > slack {
		t.Errorf("%s: %d MiB more are mapped outside the heap", when, (end.outside-warm.outside)>>20)
	}
	if grown := end.inUse() - warm.inUse(); grown > touched {
		t.Errorf("%s: %d MiB more are in use and resident", when, grown>>20)
	}
	// The collector lets the heap double; the binary, stacks and mapped files come on top.
	if most := 2*end.heap + end.used + 160<<20; end.resident > most {
		t.Errorf("%s: %d MiB are resident, what is known explains %d", when, end.resident>>20, most>>20)
	}
}

// halves waits for a part of the time, and looks after a third of it and at the end.
func halves(t *testing.T, r *running, admin string, lasts time.Duration) (warm, end looked) {
	t.Helper()
	time.Sleep(lasts / 3)
	warm = look(t, r, admin)
	time.Sleep(lasts - lasts/3)
	return warm, look(t, r, admin)
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

// looked is what a server had in use at one moment: heap is what is alive on it, idle what is free on it, and released
// what of that was given back to the system.
type looked struct{ resident, heap, idle, released, outside, used, pool, goroutines, files int64 }

// free returns the heap's pages that are free and still resident.
func (l *looked) free() int64 { return l.idle - l.released }

// inUse returns what is resident and not free.
func (l *looked) inUse() int64 { return l.resident - l.free() }

// look has a server collect its garbage and reads its metrics. Requests allocate meanwhile: it takes the least of
// several.
func look(t *testing.T, r *running, admin string) (least looked) {
	t.Helper()
	for i := range 5 {
		l := lookOnce(t, r, admin)
		if i == 0 || l.heap < least.heap {
			least = l
		}
	}
	return least
}

func lookOnce(t *testing.T, r *running, admin string) (l looked) {
	t.Helper()
	for range 2 { // what the first round finds is given back after it
		resp, err := http.Get("http://" + admin + "/debug/pprof/heap?gc=1")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	_, body := r.get(t, http.MethodGet, "/metrics", "")
	found, at := 0, map[string]*int64{"process_resident_memory_bytes": &l.resident,
		"go_memstats_heap_alloc_bytes": &l.heap,
		"go_memstats_heap_idle_bytes":  &l.idle, "go_memstats_heap_released_bytes": &l.released,
		"grebe_offheap_bytes":   &l.outside,
		"grebe_pool_used_bytes": &l.used, "grebe_pool_bytes": &l.pool, "go_goroutines": &l.goroutines}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if f, err := strconv.ParseFloat(value, 64); at[name] != nil && err == nil {
			*at[name] = int64(f)
			found++
		}
	}
	if found != len(at) {
		t.Skipf("this system does not tell memory or goroutines: %d of %d were found", found, len(at))
	}
	return l
}
