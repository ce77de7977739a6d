// Package filter says which items a request may get by their attributes: those with one of some values, with none of
// some values, or with a number or a time in a range. Matches is the definition; indexes must agree with it.
//
// The package is pure.
package filter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Filter has conditions by attribute. An item passes if it meets all of them.
type Filter map[string]Condition

// Condition is what a filter says of one attribute. An item meets it if it meets each part that is there.
type Condition struct {
	Any   []string // it has one of these values
	Not   []string // it has none of these values
	Range *Range   // one of its values is in the range
}

// Matches reports whether an item with these attributes passes.
func (f Filter) Matches(attributes map[string][]string) bool {
	for name, c := range f {
		if !c.Matches(attributes[name]) {
			return false
		}
	}
	return true
}

// Matches reports whether an item with these values of the attribute meets the condition.
func (c Condition) Matches(values []string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return slices.Contains(list, v) })
	}
	if c.Any != nil && !in(c.Any) || in(c.Not) {
		return false
	}
	return c.Range == nil || slices.ContainsFunc(values, c.Range.has)
}

// Kind says how values are ordered.
type Kind uint8

// The kinds of values that ranges have.
const (
	Number Kind = iota
	Time
)

func (k Kind) String() string {
	if k == Time {
		return "time"
	}
	return "number"
}

// Range is the values of a kind whose keys are between Low and High, both included.
type Range struct {
	Kind      Kind
	Low, High int64
}

func (r *Range) has(value string) bool {
	key, ok := r.Kind.Key(value)
	return ok && key >= r.Low && key <= r.High
}

// Key returns a number that orders a value among those of a kind, or false if the value is of another kind. Times are
// ordered to the microsecond.
func (k Kind) Key(value string) (int64, bool) {
	if k == Time {
		return timeKey(value)
	}
	return numberKey(value)
}

// numberKey returns the bits of a decimal number, arranged so that they are ordered as the numbers.
func numberKey(value string) (int64, bool) {
	if len(value) == 0 || len(value) > 64 {
		return 0, false
	}
	for _, c := range []byte(value) {
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, false
	}
	return floatKey(f), true
}

func floatKey(f float64) int64 {
	if f == 0 { // also -0
		return 0
	}
	b := int64(math.Float64bits(f))
	if b < 0 {
		return math.MinInt64 - b - 1
	}
	return b
}

// layouts are the forms of a time. Without a zone it is UTC.
var layouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly}

func timeKey(value string) (int64, bool) {
	if len(value) < len(time.DateOnly) || len(value) > 40 || value[4] != '-' {
		return 0, false
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, value); err == nil {
			return t.UnixMicro(), true
		}
	}
	return 0, false
}

// Bounds are the ends of a range as a request has them; empty: none.
type Bounds struct{ GTE, GT, LTE, LT string }

// errBound says what a bound must be.
var errBound = errors.New("want a number, or a time such as 2026-01-31 or 2026-01-31T12:00:00Z")

// Range returns the range between the bounds, nil if there are none. An error names the bound in question, or "".
func (b Bounds) Range() (r *Range, bound string, err error) {
	for _, e := range []struct {
		name, text string
		low, open  bool
	}{{"gte", b.GTE, true, false}, {"gt", b.GT, true, true}, {"lte", b.LTE, false, false}, {"lt", b.LT, false, true}} {
		if e.text == "" {
			continue
		}
		kind := Number
		key, ok := kind.Key(e.text)
		if !ok {
			kind = Time
			key, ok = kind.Key(e.text)
		}
		switch {
		case !ok:
			return nil, e.name, errBound
		case r == nil:
			r = &Range{Kind: kind, Low: math.MinInt64, High: math.MaxInt64}
		case r.Kind != kind:
			return nil, e.name, fmt.Errorf("is a %s, but another bound is a %s", kind, r.Kind)
		}
		switch {
		case e.low && e.open:
			r.Low = max(r.Low, key+1)
		case e.low:
			r.Low = max(r.Low, key)
		case e.open:
			r.High = min(r.High, key-1)
		default:
			r.High = min(r.High, key)
		}
	}
	if r != nil && r.Low > r.High {
		return nil, "", errors.New("no value is between these bounds")
	}
	return r, "", nil
}

// String writes a range in a form that is unique.
func (r *Range) String() string {
	return strings.Join([]string{r.Kind.String(), strconv.FormatInt(r.Low, 10), strconv.FormatInt(r.High, 10)}, " ")
}
