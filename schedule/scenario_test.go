package schedule

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios in testdata print as what they should print")

// Scenarios are blocks of commands, a line of dashes and what they print. Times are on one clock
// that begins at 0; a request arrives at the time of the last step unless it says otherwise.
//
//	model fixed=2ms row=10us           milliseconds of a batch; also square, key, request
//	batcher slo=200ms capacity=8       a new, empty queue; also maxrows, margin, efficiency
//	add r1 rows=900 deadline=50ms      also keys, at
//	remove r1
//	step 5ms                           decide at 5 ms
//	drain 5ms                          decide and run, batch after batch, until nothing waits
//
// Commands of other decisions are beside the type pricing.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(data))
			if got == string(data) {
				return
			}
			if !*rewrite {
				t.Errorf("%s prints (-rewrite accepts it):\n%s", name, got)
				return
			}
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// replay runs a file's commands and returns it with what they print.
func replay(t *testing.T, text string) string {
	s := &scenario{t: t}
	var out strings.Builder
	expected := false // between the dashes and the next empty line
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case expected:
			expected = line != ""
			if !expected {
				out.WriteString("\n")
			}
		case line == "----":
			out.WriteString("----\n" + s.out.String())
			s.out.Reset()
			expected = true
		default:
			out.WriteString(line + "\n")
			if line != "" && !strings.HasPrefix(line, "#") {
				s.run(line)
			}
		}
	}
	return out.String()
}

type scenario struct {
	t     *testing.T
	model PrefillModel
	queue *Batcher
	names map[uint64]string
	now   time.Duration
	out   strings.Builder
	pricing
}

func (s *scenario) run(line string) {
	words := strings.Fields(line)
	args := map[string]string{}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			args[k] = v
		}
	}
	span := func(key string) time.Duration { return s.duration(args[key]) }
	ms := func(key string) float64 { return float64(span(key)) / float64(time.Millisecond) }
	switch words[0] {
	case "model":
		s.model = PrefillModel{Fixed: ms("fixed"), Row: ms("row"), Key: ms("key"), Request: ms("request"), Square: s.number(args["square"])}
	case "batcher":
		c := DefaultBatcher(int(s.number(args["capacity"])), span("slo"))
		c.MaxRows, c.Margin = int(s.number(args["maxrows"])), s.number(args["margin"])
		if e := args["efficiency"]; e != "" {
			c.Efficiency = s.number(e)
		}
		q, err := NewBatcher(c, s.model)
		if err != nil {
			s.t.Fatal(err)
		}
		s.queue, s.now, s.names = q, 0, map[uint64]string{}
		fmt.Fprintf(&s.out, "target %v\n", q.Target())
	case "add":
		j := Job{ID: uint64(len(s.names)), Rows: int(s.number(args["rows"])), Keys: int(s.number(args["keys"])), Arrival: s.now, Deadline: span("deadline")}
		if args["at"] != "" {
			j.Arrival = span("at")
		}
		s.names[j.ID] = words[1]
		if !s.queue.Add(j) {
			fmt.Fprintf(&s.out, "%s refused\n", words[1])
		}
	case "remove":
		for id, n := range s.names {
			if n == words[1] && !s.queue.Remove(id) {
				fmt.Fprintf(&s.out, "%s does not wait\n", n)
			}
		}
	case "step":
		s.now = s.duration(words[1])
		s.step()
	case "drain":
		s.now = s.duration(words[1])
		for s.queue.Len() > 0 {
			s.now = s.step()
		}
	default:
		if !s.price(words, args) {
			s.t.Fatalf("no command %q", line)
		}
	}
}

// step prints a decision and returns when the worker decides next.
func (s *scenario) step() time.Duration {
	batch, shed, wake := s.queue.Step(s.now)
	fmt.Fprintf(&s.out, "%v:", s.now)
	if len(shed) > 0 {
		fmt.Fprintf(&s.out, " shed%s", s.list(shed))
	}
	var sum load
	for i := range batch {
		sum = sum.plus(&batch[i])
	}
	took := s.queue.predict(sum)
	switch {
	case len(batch) > 0:
		fmt.Fprintf(&s.out, " run%s (%d rows, %v)\n", s.list(batch), sum.rows, took.Round(time.Microsecond))
		return s.now + took
	case wake == Never:
		fmt.Fprintln(&s.out, " idle")
	default:
		fmt.Fprintf(&s.out, " wait until %v\n", wake.Round(time.Microsecond))
	}
	return wake
}

func (s *scenario) list(jobs []Job) string {
	out := ""
	for _, j := range jobs {
		out += " " + s.names[j.ID]
	}
	return out
}

func (s *scenario) duration(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *scenario) number(text string) float64 {
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
