package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Readings are bounded, begin with the first one, and all of the last five minutes are there, however long the server
// runs.
func TestHistoryIsBounded(t *testing.T) {
	start := time.UnixMilli(1_000_000)
	for _, runs := range []time.Duration{0, time.Minute, 20 * time.Minute, 21 * time.Minute, 7 * time.Hour,
		7 * 24 * time.Hour} {
		var h history
		n := int64(0)
		for at := time.Duration(0); at <= runs; at += readEvery {
			h.add(start.Add(at), fmt.Sprint(n))
			n++
		}
		got := h.readings()
		if len(got) > recentMost+wholeMost {
			t.Errorf("after %v: %d readings", runs, len(got))
		}
		if got[0].Time != start.UnixMilli() || got[len(got)-1].Metrics != fmt.Sprint(n-1) {
			t.Errorf("after %v: from %v to reading %s of %d", runs, got[0].Time, got[len(got)-1].Metrics, n)
		}
		if !slices.IsSortedFunc(got, func(a, b reading) int { return int(a.Time - b.Time) }) {
			t.Errorf("after %v: not in the order of time", runs)
		}
		// Steps before the recent readings are at most 1/60 of the whole.
		widest := max(readEvery.Milliseconds(), runs.Milliseconds()/(wholeMost/4))
		for i := 1; i < len(got); i++ {
			if step := got[i].Time - got[i-1].Time; step <= 0 || step > widest {
				t.Fatalf("after %v: reading %d of %d comes %d ms after the one before, at most %d", runs, i, len(got), step, widest)
			}
		}
		for i := max(1, len(got)-recentMost+1); i < len(got); i++ {
			if got[i].Time-got[i-1].Time != readEvery.Milliseconds() {
				t.Errorf("after %v: a recent reading is missing before %d", runs, got[i].Time)
			}
		}
	}
}

// The history counts what /metrics counts, with labels that the charts do not need added up.
func TestHistoryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		end := w.runHistory()
		synctest.Wait()
		for range 3 {
			w.metrics.answered("rank", 200, 30*time.Millisecond)
		}
		w.metrics.answered("rank", 429, time.Millisecond)
		time.Sleep(2*readEvery + time.Second)
		synctest.Wait()
		end()
		rep, err := w.getHistory(nil, "")
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Now      int64
			Readings []reading
		}
		if err := json.Unmarshal(rep.body, &got); err != nil || len(got.Readings) != 3 {
			t.Fatalf("%d readings (%v), want 3: %s", len(got.Readings), err, rep.body)
		}
		if got.Now-got.Readings[2].Time != time.Second.Milliseconds() {
			t.Errorf("the last reading is of %d, now is %d", got.Readings[2].Time, got.Now)
		}
		for _, want := range []string{`grebe_requests_total{code="200",op="rank"} 3` + "\n",
			`grebe_requests_total{code="429",op="rank"} 1` + "\n",
			`grebe_request_seconds_count{op="rank"} 4` + "\n", `grebe_request_seconds_bucket{op="rank",le="+Inf"} 4` + "\n"} {
			if !strings.Contains(got.Readings[2].Metrics, want) {
				t.Errorf("no %q in\n%s", want, got.Readings[2].Metrics)
			}
		}
		if strings.Contains(got.Readings[0].Metrics, `grebe_requests_total{code="200",op="rank"} 3`) {
			t.Error("the first reading has the requests that came after it")
		}
	})
}

// Every metric that a chart reads is in the history, and nothing else is.
func TestHistoryHasWhatChartsRead(t *testing.T) {
	read := map[string]bool{}
	for _, file := range []string{"live.js", "fleet.js"} {
		script, err := os.ReadFile("dashboard/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`grebe_\w+`).FindAllString(string(script), -1) {
			if !strings.HasPrefix(m, "grebe_index_") { // shown as it is now
				read[strings.TrimSuffix(strings.TrimSuffix(m, "_sum"), "_count")] = true
			}
		}
	}
	for name := range read {
		if _, ok := shown[name]; !ok {
			t.Errorf("a chart reads %s, which the history does not keep", name)
		}
	}
	for name := range shown {
		if !read[name] {
			t.Errorf("the history keeps %s, which no chart reads", name)
		}
	}
}

// A server remembers from its start on, and tells only admins.
func TestServedHistory(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Server.Serve(ctx, Listeners{HTTP: ln}) }()
	deadline := time.Now().Add(time.Minute)
	for len(w.history.readings()) == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, httptest.NewRequest("GET", "/v1/history", nil))
	if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), "grebe_requests_total") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
