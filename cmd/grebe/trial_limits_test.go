package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Clients send far more than a key's limit, to three members, unevenly. What all let through together is about what one
// process would have let through of the same requests: on a stalled machine that is less than the limit.
func TestTrialLimits(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	const rate = 50
	if _, errs, code := grebe(t, "key", "--name", "shop", "--roles", "serve", "--rate", "50", "--add", keys,
		"--out", keys+".key"); code != 0 {
		t.Fatal(errs)
	}
	key, err := os.ReadFile(keys + ".key")
	if err != nil {
		t.Fatal(err)
	}
	c := newTrial(t, 3, "auth.keys="+keys)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var passed, refused atomic.Int64
	var mu sync.Mutex
	var asked []time.Time
	var clients sync.WaitGroup
	for i, m := range []*member{c.nodes[0], c.nodes[0], c.nodes[0], c.nodes[1], c.nodes[2]} {
		clients.Go(func() {
			for every := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-every.C {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.listen+"/v1/models", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
				mu.Lock()
				asked = append(asked, time.Now())
				mu.Unlock()
				resp, err := trialClient.Do(req)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("client %d: %v", i, err)
					}
					return
				}
				resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
				default:
					t.Errorf("client %d: %s", i, resp.Status)
					return
				}
			}
		})
	}
	clients.Wait()
	got, limit, alone := float64(passed.Load()), 10.*rate+rate, oneBucket(asked, rate)
	t.Logf("three members let %.0f requests of a key through in 10 s and refused %d; its limit is %.0f, and one process "+
		"would have let %.0f through",
		got, refused.Load(), limit, alone)
	if got > 1.1*limit {
		t.Errorf("more than the limit: %.0f", got)
	}
	if got < .9*(alone-rate) {
		t.Errorf("too few: %.0f, although %d were refused", got, refused.Load())
	}
}

// oneBucket returns how many requests a bucket of one second lets through.
func oneBucket(asked []time.Time, rate float64) float64 {
	slices.SortFunc(asked, time.Time.Compare)
	passed, left := 0., rate
	for i, at := range asked {
		if i > 0 {
			left = min(left+rate*at.Sub(asked[i-1]).Seconds(), rate)
		}
		if left >= 1 {
			passed, left = passed+1, left-1
		}
	}
	return passed
}
