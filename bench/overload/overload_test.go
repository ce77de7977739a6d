package overload

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The bars: at most 1 % late, goodput of 85 % and above three times of 75 %, and good requests in time again after the
// load.
func TestBars(t *testing.T) {
	for _, c := range []struct {
		name string
		load Load
		want bool
	}{
		{"good", Load{Times: 3, Late: .01, Goodput: .85, AgainMS: 500}, true},
		{"late", Load{Times: 3, Late: .011, Goodput: 1}, false},
		{"little", Load{Times: 3, Goodput: .84}, false},
		{"little at ten times", Load{Times: 10, Goodput: .75}, true},
		{"slow afterwards", Load{Times: 3, Goodput: 1, AgainMS: 501}, false},
		{"failing afterwards", Load{Times: 3, Goodput: 1, Unanswers: 1}, false},
	} {
		if c.load.judge(500 * time.Millisecond); c.load.Passed != c.want {
			t.Errorf("%s: passed %v", c.name, c.load.Passed)
		}
	}
}

func TestReportsSayWhatFailed(t *testing.T) {
	r := &Report{Loads: []Load{{Times: 3, Passed: true}, {Times: 10, Unanswers: 2}},
		Slow: []Slow{{Kind: "chunked", Ratio: 2}}}
	var b bytes.Buffer
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pass", "FAIL", "2 of 20 failed", "chunked"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
