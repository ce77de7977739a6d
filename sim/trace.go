package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// trace plays recorded requests.
type trace struct {
	all     []Request
	lengths []int32 // by item
	speedup float64
	repeat  bool
	at      int
	round   time.Duration // of the rounds before
}

// line is a request of a trace: NDJSON, one object per line, in the order of time.
type line struct {
	Time       *float64          `json:"time"`        // seconds since the beginning
	User       json.RawMessage   `json:"user"`        // a number or a text
	UserTokens int32             `json:"user_tokens"` // length of the user's history
	Items      []json.RawMessage `json:"items"`       // numbers or texts
	ItemTokens []int32           `json:"item_tokens"` // length of each; one number for all is enough
}

// playTrace returns the requests of the scenario's file from the beginning. The runs of a sweep share what was read.
func playTrace(s *Scenario) (*trace, error) {
	if s.recorded == nil {
		t, err := readTrace(s)
		if err != nil {
			return nil, err
		}
		s.recorded = t
	}
	t := *s.recorded
	t.speedup = s.Trace.Speedup
	return &t, nil
}

// readTrace reads a file of requests.
func readTrace(s *Scenario) (*trace, error) {
	f, err := os.Open(s.Trace.File)
	if err != nil {
		return nil, fmt.Errorf("sim: read trace: %w", err)
	}
	defer f.Close()
	t := &trace{speedup: s.Trace.Speedup, repeat: s.Trace.Repeat}
	users, items := map[string]uint64{}, map[string]int32{}
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 16<<20)
	last := 0.0
	for n := 1; scan.Scan(); n++ {
		text := bytes.TrimSpace(scan.Bytes())
		if len(text) == 0 {
			continue
		}
		var l line
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&l); err != nil {
			return nil, fmt.Errorf("sim: %s:%d: %w", s.Trace.File, n, err)
		}
		if err := l.check(last); err != nil {
			return nil, fmt.Errorf("sim: %s:%d: %w", s.Trace.File, n, err)
		}
		last = *l.Time
		r := Request{At: time.Duration(last * float64(time.Second)), UserTokens: l.UserTokens,
			User: number(users, string(l.User))}
		for i, id := range l.Items {
			tokens := l.ItemTokens[min(i, len(l.ItemTokens)-1)]
			item, known := items[string(id)]
			if !known {
				item = int32(len(items))
				items[string(id)] = item
				t.lengths = append(t.lengths, tokens)
			}
			r.Items, r.ItemTokens = append(r.Items, item), append(r.ItemTokens, t.lengths[item])
		}
		t.all = append(t.all, r)
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("sim: read trace %s: %w", s.Trace.File, err)
	}
	if len(t.all) == 0 {
		return nil, fmt.Errorf("sim: %s:1: the trace has no requests", s.Trace.File)
	}
	return t, nil
}

func number(known map[string]uint64, id string) uint64 {
	n, ok := known[id]
	if !ok {
		n = uint64(len(known))
		known[id] = n
	}
	return n
}

func (l *line) check(last float64) error {
	switch {
	case l.Time == nil || *l.Time < last || *l.Time > 1e9:
		return fmt.Errorf("time: want seconds since the beginning, never before the line above")
	case len(l.User) == 0:
		return fmt.Errorf("user: there is none")
	case l.UserTokens < 1 || l.UserTokens > 1<<20:
		return fmt.Errorf("user_tokens: %d: want 1 to 1048576", l.UserTokens)
	case len(l.Items) == 0:
		return fmt.Errorf("items: there are none")
	case len(l.ItemTokens) != len(l.Items) && len(l.ItemTokens) != 1:
		return fmt.Errorf("item_tokens: %d numbers for %d items", len(l.ItemTokens), len(l.Items))
	}
	for _, n := range l.ItemTokens {
		if n < 1 || n > 1<<20 {
			return fmt.Errorf("item_tokens: %d: want 1 to 1048576", n)
		}
	}
	seen := map[string]bool{}
	for _, id := range l.Items {
		if seen[string(id)] {
			return fmt.Errorf("items: %s is there twice", id)
		}
		seen[string(id)] = true
	}
	return nil
}

// Items returns the number of different items.
func (t *trace) Items() int { return len(t.lengths) }

// ItemTokens returns the length of an item, as of its first request.
func (t *trace) ItemTokens(item int32) int32 { return t.lengths[item] }

// Past visits the trace itself: there is no other.
func (t *trace) Past(visit func(r *Request) bool) {
	for i := range t.all {
		if !visit(&t.all[i]) {
			return
		}
	}
}

// Next plays the next request.
func (t *trace) Next(r *Request) bool {
	if t.at == len(t.all) {
		if !t.repeat {
			return false
		}
		t.round += t.all[t.at-1].At - t.all[0].At + time.Millisecond
		t.at = 0
	}
	from := &t.all[t.at]
	t.at++
	r.At = time.Duration(float64(from.At+t.round) / t.speedup)
	r.User, r.UserTokens = from.User, from.UserTokens
	r.Items = append(r.Items[:0], from.Items...)
	r.ItemTokens = append(r.ItemTokens[:0], from.ItemTokens...)
	return true
}
