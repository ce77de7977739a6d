package serving

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"grebe/internal/config"
)

// asked is what a request asks for.
type asked struct {
	User struct {
		ID string `json:"id"`
	} `json:"user"`
	Width    int `json:"beam_width"`
	Deadline int `json:"deadline_ms"`
}

// server answers every request but each refuse-th, which it refuses, and notes the users.
func server(t *testing.T, refuse int) (url string, users func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var a asked
		text, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(text, &a); err != nil || r.URL.Path != "/v1/recommend" || a.Width != 7 || a.Deadline == 0 {
			t.Errorf("%s: %s: %v", r.URL.Path, text, err)
		}
		mu.Lock()
		all = append(all, a.User.ID)
		n := len(all)
		mu.Unlock()
		if refuse > 0 && n%refuse == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		io.WriteString(w, `{"results":[{"id":"i1"}],"usage":{"prompt_tokens":100,"cached_tokens":60}}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

// A rate is sustained if requests are answered, and not if some are refused. Tokens are counted per answer.
func TestRatesThatAreSustained(t *testing.T) {
	for refuse, want := range map[int]bool{0: true, 10: false} {
		url, _ := server(t, refuse)
		// The SLO is far away: how fast this machine is does not matter.
		loops, err := Run(t.Context(), Options{URL: url, Width: 7, Rates: []float64{300}, Clients: []int{2},
			Length: 300 * time.Millisecond,
			Warmup: time.Millisecond, SLO: time.Minute})
		if err != nil || len(loops) != 2 {
			t.Fatalf("%d loops: %v", len(loops), err)
		}
		open, closed := &loops[0], &loops[1]
		if open.Sustained != want || closed.Sustained {
			t.Errorf("each %d-th request is refused: sustained %v, by clients %v; want %v and false", refuse, open.Sustained,
				closed.Sustained, want)
		}
		if open.Computed != 40 || open.Cached != 60 || closed.Clients != 2 {
			t.Errorf("%v tokens computed, %v cached, %d clients; want 40, 60, 2", open.Computed, open.Cached, closed.Clients)
		}
		if n := open.Errors["429"]; (n > 0) != (refuse > 0) || open.Requests != open.Answered+n {
			t.Errorf("%d refused and %d answered, of %d", n, open.Answered, open.Requests)
		}
	}
}

// The same seed asks for the same users, and loops of one run for different ones.
func TestSeeds(t *testing.T) {
	c := newClient(&Options{Seed: 3, Users: 2000, Zipf: 1.05, Width: 7, N: 10})
	d := newClient(&Options{Seed: 4, Users: 2000, Zipf: 1.05, Width: 7, N: 10})
	same, other := 0, 0
	for i := range 200 {
		a := string(c.body(i, time.Second))
		if a != string(c.body(i, time.Second)) {
			t.Fatalf("request %d is another one when it is made again", i)
		}
		if a == string(d.body(i, time.Second)) {
			same++
		}
		if a != string(c.body(i+1, time.Second)) {
			other++
		}
	}
	if same > 100 || other < 100 {
		t.Errorf("%d of 200 requests are those of another seed, %d differ from the next one", same, other)
	}
}

func TestLoadsThatMakeNoSense(t *testing.T) {
	for want, o := range map[string]Options{"no server": {Rates: []float64{1}}, "neither": {URL: "http://x"}} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	if _, err := Make(t.TempDir(), Files{Shape: "huge"}); err == nil || !strings.Contains(err.Error(), "tiny") {
		t.Errorf("a model that there is not: %v", err)
	}
}

// Make writes what a server reads: a configuration without mistakes, and as many items and users as asked for.
func TestMake(t *testing.T) {
	dir := t.TempDir()
	name, err := Make(dir, Files{Shape: "tiny", Items: 30, Codes: 8, Users: 4, Memory: "8MiB"})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Source{File: name})
	if err != nil {
		t.Fatal(err)
	}
	if m := loaded.Config.Models; len(m) != 1 || m[0].Name != "tiny" || m[0].DeviceMemory.Bytes != 8<<20 {
		t.Errorf("models %+v", m)
	}
	for file, want := range map[string]int{"items.ndjson": 30, "users.ndjson": 4} {
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n := 0
		for s := bufio.NewScanner(f); s.Scan(); n++ {
			if !json.Valid(s.Bytes()) {
				t.Errorf("%s, line %d: %s", file, n+1, s.Text())
			}
		}
		if n != want {
			t.Errorf("%s has %d lines, want %d", file, n, want)
		}
	}
}

// Requests of a model of events bring new events in three ways, and are the same when they are made again.
func TestNewEvents(t *testing.T) {
	type event struct {
		Item string
		Time int64
	}
	type user struct {
		ID        string
		Events    []event
		NewEvents []event `json:"new_events"`
	}
	for _, send := range []Send{SendNew, SendAppend, SendWhole} {
		o := Options{URL: "http://x", Clients: []int{1}, Candidates: 5, Items: 100, Users: 10, New: 3, Send: send, Events: 7}
		if err := o.prepare(); err != nil {
			t.Fatal(err)
		}
		c := newClient(&o)
		for i := range 20 {
			body, path, ahead := c.request(i, time.Second)
			if again, _, _ := c.request(i, time.Second); string(again) != string(body) {
				t.Fatalf("request %d is another one when it is made again", i)
			}
			var got struct {
				User       user
				Candidates []struct{ ID string }
			}
			if err := json.Unmarshal(body, &got); err != nil || len(got.Candidates) != 5 || got.User.ID == "" {
				t.Fatalf("%s: %s: %v", send, body, err)
			}
			var appended user
			if ahead != nil {
				if err := json.Unmarshal(ahead, &appended); err != nil || path != "/v1/users/"+got.User.ID+"/events" {
					t.Fatalf("%s: %s: %s: %v", send, path, ahead, err)
				}
			}
			want := map[Send][3]int{SendNew: {3, 0, 0}, SendAppend: {0, 0, 3}, SendWhole: {0, 10, 0}}[send]
			if n := [3]int{len(got.User.NewEvents), len(got.User.Events), len(appended.Events)}; n != want {
				t.Fatalf("%s: %v new events, all, and ahead; want %v", send, n, want)
			}
		}
	}
	for _, o := range []Options{{New: 3}, {New: 3, Candidates: 5, Send: "later"}} {
		o.URL, o.Clients = "http://x", []int{1}
		if err := o.prepare(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// The users that Make writes have the events that SendWhole sends, and a model of events is as any other.
func TestMakeEvents(t *testing.T) {
	dir := t.TempDir()
	name, err := Make(dir, Files{Shape: "hstu-tiny", Items: 50, Users: 3, Events: 12, Memory: "8MiB"})
	if err != nil {
		t.Fatal(err)
	}
	if loaded, err := config.Load(config.Source{File: name}); err != nil || loaded.Config.Models[0].Name != "hstu-tiny" {
		t.Fatalf("%v: %v", loaded, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "users.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHistory(12, 50)
	for u, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		want := `{"id":"` + userID(u) + `","events":[` + string(h.of(nil, u)) + "]}"
		if line != want || !json.Valid([]byte(line)) {
			t.Errorf("user %d is %s, want %s", u, line, want)
		}
	}
	if _, err := Make(dir, Files{Shape: "hstu-tiny", Rank: "tiny"}); err == nil {
		t.Error("events and texts for one user")
	}
	if _, err := Make(dir, Files{Shape: "tiny", DeviceRows: "25%"}); err == nil {
		t.Error("a model of texts has no rows")
	}
}

// With DeviceRows the rows of each table lie in a file, which the server's table maps, and the device caches some.
func TestMakeRows(t *testing.T) {
	dir := t.TempDir()
	name, err := Make(dir, Files{Shape: "hstu-tiny", Items: 50, Users: 3, Events: 12, Memory: "8MiB", Features: 2,
		DeviceRows: "25%"})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Source{File: name})
	if err != nil {
		t.Fatal(err)
	}
	m, tables := loaded.Config.Models[0], loaded.Config.Tables
	if len(tables) != 3 || m.ItemTable != tables[0].Name || m.DeviceRows.Percent != 25 {
		t.Errorf("%d tables, the model's rows are of %q, %v of them on the device", len(tables), m.ItemTable, m.DeviceRows)
	}
	for i, table := range tables {
		if i > 0 && (m.Tables[i-1].Table != table.Name || m.Tables[i-1].DeviceRows.Percent != 25) {
			t.Errorf("feature %d reads %+v, want table %q", i, m.Tables[i-1], table.Name)
		}
		if info, err := os.Stat(table.File); err != nil || info.Size() != 50*2*int64(table.Dim) {
			t.Errorf("the file of rows of %s: %v, %v", table.Name, info, err)
		}
	}
}
