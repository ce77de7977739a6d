package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodScenario = `name: test
requests: 10
load: {rate: 100}
users: {count: 10, tokens: {mean: 100}}
items:
  count: 200
  tokens: {mean: 10}
fleet:
  nodes: 2
  profile: h200-qwen2-1.5b
network: {bandwidth: 100Gb/s}
placement:
  kind: hash
`

// A bad scenario is refused with the line of what is wrong.
func TestBadScenarios(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "s.yaml")
	read := func(text string) error {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadScenario(file, nil)
		return err
	}
	if err := read(goodScenario); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, line, says string }{
		{"requests: 10", "reqests: 10", ":2:", "unknown key"},
		{"requests: 10", "requests: -1", ":2:", "at least 0"},
		{"rate: 100", "rate: 0", ":3:", "above 0"},
		{"100Gb/s", "0Gb/s", ":11:", "over a network"},
		{"100Gb/s", "fast", ":11:", "not a bandwidth"},
		{"nodes: 2", "nodes: 0", ":9:", "1 to 1024"},
		{"count: 200", "count: 20", ":6:", "number of items"}, // fewer items than candidates
		{"profile: h200-qwen2-1.5b", "profile: abacus", ":10:", "no profile"},
		{"kind: hash", "kind: magic", ":13:", "hot-cold"},
		{"mean: 100", "mean: 100000000", ":4:", "mean"},
	} {
		err := read(strings.Replace(goodScenario, c.from, c.to, 1))
		if err == nil || !strings.Contains(err.Error(), c.line) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v: want an error at %s with %q", c.to, err, c.line, c.says)
		}
	}
}

// Without a trace, users and items the one complaint is that nothing says which requests come.
func TestScenarioWithoutRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	text := "load: {rate: 60}\nwarmup: 60s\nfleet: {nodes: 1, profile: h200-qwen2-1.5b}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadScenario(file, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "nothing says which requests come: give --trace FILE") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("got the error %v", err)
	}
}

func TestBadTraces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.ndjson")
	good := `{"time":0,"user":"a","user_tokens":100,"items":["x","y"],"item_tokens":[10,12]}
{"time":0.5,"user":7,"user_tokens":100,"items":["x",3],"item_tokens":[9]}
`
	s := small(t, func(s *Scenario) { s.Trace.File = file })
	read := func(text string) error {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readTrace(s)
		return err
	}
	if err := read(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, line string }{
		{good, "", ":1:"},
		{`"time":0.5`, `"time":-1`, ":2:"},
		{`"user":7,`, ``, ":2:"},
		{`"x",3`, `"x","x"`, ":2:"},
		{`[10,12]`, `[10,12,3]`, ":1:"},
		{`[10,12]`, `[10,0]`, ":1:"},
		{`"items"`, `"things"`, ":1:"},
	} {
		if err := read(strings.Replace(good, c.from, c.to, 1)); err == nil || !strings.Contains(err.Error(), c.line) {
			t.Errorf("%s: %v: want an error at %s", c.to, err, c.line)
		}
	}
}

// Arrival times may come from a recording, at another mean rate.
func TestRecordedTimes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.jsonl")
	if err := os.WriteFile(file, []byte("{\"timestamp\":0}\n{\"timestamp\":1000}\n{\"timestamp\":4000}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	s := small(t, func(s *Scenario) { s.Load.Times, s.Load.Rate = file, 5 })
	r, f := play(t, s, Options{})
	// two gaps at 5/s take 0.4 s
	if r.Sent != 3 || f.result.arrived.Seconds() < .399 || f.result.arrived.Seconds() > .401 {
		t.Errorf("%d requests, the last one at %v", r.Sent, f.result.arrived)
	}
}
