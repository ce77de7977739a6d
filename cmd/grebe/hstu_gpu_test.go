package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/app/apptest"
	"grebe/compute"
	"grebe/internal/cli"
	"grebe/model/hstu/hstutest"
)

// paperModel writes a checkpoint of HSTU of the size that the paper's retrieval has, for histories up to that long.
func paperModel(t *testing.T, length int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hstu")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	spec := hstutest.Spec{Hidden: 512, Layers: 6, Heads: 4, HeadDim: 128, Items: 20_000, MaxSeqLen: length,
		DType: compute.BF16, Seed: 1}
	if err := hstutest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	return dir
}

// eventsAnswer is what a test reads of an answer about events.
type eventsAnswer struct {
	Results []struct {
		ID    string
		Score float64
	}
	Usage struct {
		Cached   int `json:"cached_tokens"`
		Computed int `json:"computed_tokens"`
	}
	Timing struct{ Queue, Fetch, Compute, Total float64 } `json:"timing_ms"`
}

// eventsOf returns a user's events as JSON: the same for the same user, the first n.
func eventsOf(user uint64, n int) string {
	r := rand.New(rand.NewPCG(user, 7))
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"item":"i%d","time":%d,"action":%d}`, r.IntN(20_000), i+1, 1+r.IntN(7))
	}
	return b.String()
}

func (r *running) askEvents(t *testing.T, path, body string) (out eventsAnswer) {
	t.Helper()
	status, text := r.get(t, http.MethodPost, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s answers %d: %.300s", path, status, text)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// rankEvents ranks 100 candidates for a user with n events; without a name nothing is kept or found.
func (r *running) rankEvents(t *testing.T, user uint64, n int, named bool) eventsAnswer {
	t.Helper()
	id := ""
	if named {
		id = fmt.Sprintf(`"id":"u%d",`, user)
	}
	var candidates []string
	for i := range 100 {
		candidates = append(candidates, fmt.Sprintf(`{"id":"i%d"}`, i*199))
	}
	return r.askEvents(t, "/v1/rank", `{"deadline_ms":30000,"user":{`+id+`"events":[`+eventsOf(user, n)+
		`]},"candidates":[`+strings.Join(candidates, ",")+`]}`)
}

// apart is the largest difference of two rankings' scores.
func apart(t *testing.T, a, b eventsAnswer) float64 {
	t.Helper()
	scores := map[string]float64{}
	for _, r := range a.Results {
		scores[r.ID] = r.Score
	}
	most := 0.0
	for _, r := range b.Results {
		s, ok := scores[r.ID]
		if !ok {
			t.Fatalf("%s is ranked once only", r.ID)
		}
		most = max(most, math.Abs(s-r.Score))
	}
	return most
}

// A model of events served on a GPU: a returning user's scores are those of recomputation, short histories score as on
// the CPU, recommendations are the same with and without what is cached, and 15,000 events are served. What it takes is
// reported, not judged.
func TestServeEventsOnTheGPU(t *testing.T) {
	apptest.NeedGPU(t)
	const longest = 15_000
	serve := func(t *testing.T, dir, device, dtype string) *running {
		return start(t, "serve", "--model", dir, "--device", device, "--set", "data_dir="+t.TempDir(), "--set",
			"models[0].dtype="+dtype,
			"--listen", "127.0.0.1:0", "--admin-listen=", "--grpc-listen=")
	}
	short := paperModel(t, 600)
	var answers []eventsAnswer
	for _, device := range []string{"cpu", "cuda"} {
		r := serve(t, short, device, "f32")
		answers = append(answers, r.rankEvents(t, 1, 400, false))
		r.stop(t)
	}
	if d := apart(t, answers[0], answers[1]); d > 1e-4 {
		t.Errorf("400 events in f32: scores differ from the CPU's by %.2g, want at most 1e-4", d)
	} else {
		t.Logf("400 events in f32: scores differ from the CPU's by %.2g", d)
	}
	dir := paperModel(t, longest+200)
	for _, c := range []struct {
		dtype     string
		tolerance float64
		lengths   []int
		users     int
	}{{"bf16", 2e-2, []int{1000, 5000, longest}, 12}, {"f32", 1e-4, []int{1000, 5000}, 3}} { // f32 is for checks, and slow
		t.Run(c.dtype, func(t *testing.T) {
			r := serve(t, dir, "cuda", c.dtype)
			for _, n := range c.lengths {
				serveEvents(t, r, c.dtype, n, c.users, c.tolerance)
			}
			if code := r.stop(t); code != cli.Done {
				t.Errorf("exits with %d", code)
			}
		})
	}
}

// serveEvents has users with n events come, and return with 20 more.
func serveEvents(t *testing.T, r *running, dtype string, n, users int, tolerance float64) {
	t.Helper()
	const more = 20
	var cold, back, coldTotal, backTotal []float64
	worst := 0.0
	for u := range uint64(users) {
		user := uint64(n) + u
		r.rankEvents(t, user, n-more, true)
		returning := r.rankEvents(t, user, n, true)
		again := r.rankEvents(t, user, n, false)
		if returning.Usage.Cached != n-more || again.Usage.Cached != 0 {
			t.Errorf("user %d with %d events: %d cached when returning, want %d; %d without a name, want none", user, n,
				returning.Usage.Cached, n-more, again.Usage.Cached)
		}
		worst = max(worst, apart(t, returning, again))
		cold, back = append(cold, again.Timing.Compute), append(back, returning.Timing.Compute)
		coldTotal, backTotal = append(coldTotal, again.Timing.Total), append(backTotal, returning.Timing.Total)
	}
	if worst > tolerance {
		t.Errorf("%d events: a returning user's scores differ from recomputation by %.2g, want at most %g", n, worst,
			tolerance)
	}
	recommend := func(id string) eventsAnswer {
		return r.askEvents(t, "/v1/recommend", `{"deadline_ms":30000,"n":10,"exclude_seen":true,"user":{`+id+`"events":[`+
			eventsOf(uint64(n), n)+`]}}`)
	}
	kept, anew := recommend(fmt.Sprintf(`"id":"u%d",`, n)), recommend("")
	same := 0
	for i := range kept.Results {
		if kept.Results[i].ID == anew.Results[i].ID {
			same++
		}
	}
	if len(kept.Results) != 10 || kept.Usage.Cached == 0 || same < 8 { // those of nearly equal scores may change places
		t.Errorf("%d events: %d of 10 recommendations are those of recomputation: %+v, %+v", n, same, kept, anew)
	}
	middle := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	t.Logf("%s, %d events, 100 candidates: cold %.2f ms on the GPU, %.2f ms in all (worst %.2f); returning with 20 new "+
		"events %.2f ms and %.2f ms (worst %.2f); scores apart %.2g; %d of 10 recommendations the same",
		dtype, n, middle(cold), middle(coldTotal), slices.Max(coldTotal), middle(back), middle(backTotal),
		slices.Max(backTotal), worst, same)
}
