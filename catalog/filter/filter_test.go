package filter

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		bounds Bounds
		not    string
		values string // separated by |
		want   bool
	}{
		{Bounds{GTE: "10", LT: "50"}, "", "10", true},
		{Bounds{GTE: "10", LT: "50"}, "", "50", false},
		{Bounds{GTE: "10", LT: "50"}, "", "49.999999999999", true},
		{Bounds{GTE: "10", LT: "50"}, "", "9.999999999999", false},
		{Bounds{GTE: "10", LT: "50"}, "", "", false},
		{Bounds{GTE: "10", LT: "50"}, "", "cheap|1e1", true},
		{Bounds{GTE: "10", LT: "50"}, "", "5|90", false},
		{Bounds{GT: "10", LTE: "50"}, "", "10.0", false},
		{Bounds{GT: "10", LTE: "50"}, "", "+50", true},
		{Bounds{GT: "-1"}, "", "-0", true},
		{Bounds{GTE: "0"}, "", "-0", true},
		{Bounds{GT: "0"}, "", "-0", false},
		{Bounds{LT: "0"}, "", "-1e-320", true},
		{Bounds{LT: "-1"}, "", "-1e308", true},
		{Bounds{GT: "1"}, "", "NaN|Inf|0x10|1_000|1e400", false},
		{Bounds{GT: "1"}, "", "2026-01-31", false},
		{Bounds{GTE: "2026-01-31"}, "", "2026-01-31T00:00:00Z", true},
		{Bounds{GT: "2026-01-31"}, "", "2026-01-31T00:00:00Z", false},
		{Bounds{GT: "2026-01-31"}, "", "2026-01-31T00:00:00.000001Z", true},
		{Bounds{GTE: "2026-01-31T12:00:00+02:00"}, "", "2026-01-31 10:00:00", true},
		{Bounds{LT: "2026-01-31T12:00:00+02:00"}, "", "2026-01-31T10:00:00", false},
		{Bounds{LT: "2026-01-31"}, "", "2025", false},
		{Bounds{LT: "2026-01-31"}, "", "2026-02-30|2026-01-30", true},
		{Bounds{}, "red", "red", false},
		{Bounds{}, "red", "blue|red", false},
		{Bounds{}, "red", "blue", true},
		{Bounds{}, "red", "", true},
		{Bounds{GTE: "1"}, "3", "2", true},
		{Bounds{GTE: "1"}, "3", "2|3", false},
		{Bounds{GTE: "1"}, "3", "", false},
	} {
		between, _, err := c.bounds.Range()
		if err != nil {
			t.Fatalf("%+v: %v", c.bounds, err)
		}
		condition := Condition{Range: between}
		if c.not != "" {
			condition.Not = []string{c.not}
		}
		values := map[string][]string{}
		if c.values != "" {
			values["a"] = strings.Split(c.values, "|")
		}
		if got := (Filter{"a": condition}).Matches(values); got != c.want {
			t.Errorf("%+v, not %q: %q passes: %v", c.bounds, c.not, c.values, got)
		}
	}
}

func TestBoundErrors(t *testing.T) {
	for _, c := range []struct {
		Bounds
		bound, says string
	}{
		{Bounds{GTE: "cheap"}, "gte", "want a number"},
		{Bounds{GT: "NaN"}, "gt", "want a number"},
		{Bounds{LT: "1e400"}, "lt", "want a number"},
		{Bounds{LTE: "2026-02-30"}, "lte", "want a number"},
		{Bounds{GTE: "1", LT: "2026-01-31"}, "lt", "is a time"},
		{Bounds{GTE: "2026-01-31", LTE: "1"}, "lte", "is a number"},
		{Bounds{GTE: "5", LT: "5"}, "", "no value"},
		{Bounds{GT: "5", LT: "4"}, "", "no value"},
	} {
		if r, bound, err := c.Range(); err == nil || bound != c.bound || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, %q, %v; want an error about %q that says %q", c.Bounds, r, bound, err, c.bound, c.says)
		}
	}
	if r, _, err := (Bounds{}).Range(); r != nil || err != nil {
		t.Errorf("no bounds: %v, %v", r, err)
	}
}

// Keys of numbers are ordered as the numbers, and only equal numbers have equal keys.
func TestKeysAreOrdered(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	draw := func() float64 {
		f := math.Float64frombits(r.Uint64())
		if math.IsNaN(f) || math.IsInf(f, 0) || r.IntN(3) == 0 {
			return float64(r.IntN(5) - 2)
		}
		return f
	}
	for range 20_000 {
		a, b := draw(), draw()
		x, ok := Number.Key(strconv.FormatFloat(a, 'g', -1, 64))
		y, also := Number.Key(strconv.FormatFloat(b, 'g', -1, 64))
		if !ok || !also || (a < b) != (x < y) || (a == b) != (x == y) {
			t.Fatalf("%v and %v have the keys %d and %d", a, b, x, y)
		}
	}
}
