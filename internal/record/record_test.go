package record

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

type tier string

func (t tier) String() string { return string(t) }

// What is written is read back, value for value.
func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	l := New(&b, 1<<20)
	a, c := l.Room("kv"), l.Room("kv")
	k1, k2 := [32]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, [32]byte{1, 2, 3, 4, 5, 6, 7, 8, 10}
	a.In("put", k1, 7, int32(-3), uint64(math.MaxUint64), true, false, .1, float32(.1), time.Second, tier("host"))
	c.Did("lists", Keys([][32]byte{k1, k2}), []int32{1, -2}, []float32{.5}, []float64{}, Names([]tier{"disk", "host"}))
	a.Sub("load").In("end")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var lines []*Line
	for line, err := range Read(&b) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if len(lines) != 3 || lines[2].String() != "load0 end" {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	v := &lines[0].Values
	one := v.Key()
	if one[0] != 1 || one[7] != 8 {
		t.Errorf("the key begins with %v", one[:8])
	}
	if n, m, u := v.Int(), v.Int64(), v.Uint64(); n != 7 || m != -3 || u != math.MaxUint64 {
		t.Errorf("numbers are %d, %d, %d", n, m, u)
	}
	if p, q := v.Bool(), v.Bool(); !p || q {
		t.Error("booleans are not + and -")
	}
	if x, y := v.Float(), v.Float(); x != .1 || float32(y) != .1 {
		t.Errorf("floats are %v and %v", x, y)
	}
	if d, s := v.Time(), v.Text(); d != time.Second || s != "host" || v.Err() != nil {
		t.Errorf("%v, %v, %v", d, s, v.Err())
	}
	v = &lines[1].Values
	keys := v.Keys()
	if len(keys) != 2 || keys[0] != one || keys[1] == one || lines[1].Room != "kv1" || !lines[1].Did {
		t.Errorf("keys are %v in %v", keys, lines[1])
	}
	if i, f, e, s := v.Ints(), v.Floats(), v.Floats(), v.Texts(); !slices.Equal(i, []int64{1, -2}) ||
		!slices.Equal(f, []float64{.5}) || len(e) > 0 ||
		!slices.Equal(s, []string{"disk", "host"}) || v.Err() != nil {
		t.Errorf("lists are %v, %v, %v, %v: %v", i, f, e, s, v.Err())
	}
}

// A value that is not what is asked for, or that nobody asked for, is an error.
func TestWrongValues(t *testing.T) {
	for _, read := range []func(*Values){
		func(v *Values) { v.Int() },
		func(v *Values) { v.Text() },
		func(v *Values) { v.Text(); v.Bool() },
		func(v *Values) { v.Text(); v.Text(); v.Text() },
		func(v *Values) { v.Keys() },
		func(v *Values) { v.Key() },
	} {
		v := &Values{text: []string{"x", "3"}, keys: map[string][32]byte{}}
		if read(v); v.Err() == nil {
			t.Errorf("no error after %d values", v.next)
		}
	}
	for _, text := range []string{"kv0", "kv0 put k0:12", "kv0 put k0:zzzzzzzzzzzzzzzz"} {
		var failed error
		for _, err := range Read(strings.NewReader(text)) {
			failed = err
		}
		if failed == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// A log that reached its size says so at the end, and has whole lines only.
func TestFullLog(t *testing.T) {
	var b bytes.Buffer
	l := New(&b, 64)
	r := l.Room("meta")
	for i := range 100 {
		r.In("apply", i)
	}
	if err := l.Close(); !errors.Is(err, ErrFull) {
		t.Errorf("closes with %v", err)
	}
	if b.Len() > 64 || !strings.HasSuffix(b.String(), "\n") {
		t.Errorf("%d bytes: %q", b.Len(), b.String())
	}
	r.In("apply", 1) // after the end: dropped
}

// Where nothing is recorded nothing is allocated.
func TestNoRoom(t *testing.T) {
	var l *Log
	r := l.Room("kv")
	key := [32]byte{1}
	if n := testing.AllocsPerRun(100, func() {
		if r.On() {
			r.In("put", key, 1)
		}
	}); n > 0 || r.Sub("load") != nil {
		t.Errorf("%v allocations", n)
	}
	r.In("put", key)
	r.Did("drop")
}

// Lines of goroutines that share a room stay together while one of them has its lock.
func TestLinesStayTogether(t *testing.T) {
	var b bytes.Buffer
	l := New(&b, 1<<20)
	r := l.Room("reuse")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				r.Lock()
				r.In("asked", i)
				r.Did("answered", i)
				r.Unlock()
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	asked := -1
	for line, err := range Read(&b) {
		if err != nil {
			t.Fatal(err)
		}
		if n := line.Values.Int(); !line.Did {
			asked = n
		} else if n != asked {
			t.Fatalf("line %d answers %d, and %d asked", line.Number, n, asked)
		}
	}
}
