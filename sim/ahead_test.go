package sim

import (
	"reflect"
	"testing"
)

// Requests that are drawn ahead are those of the generator, to the last one.
func TestAheadDrawsTheSameRequests(t *testing.T) {
	s := small(t, nil)
	read := func(ahead bool) (all []Request) {
		f := &fleet{}
		var err error
		if f.source, err = newStream(s); err != nil {
			t.Fatal(err)
		}
		if ahead {
			defer f.drawAhead()()
		}
		var r Request
		for range 500 {
			if !f.source.Next(&r) {
				t.Fatal("there are no more requests")
			}
			all = append(all, Request{At: r.At, User: r.User, UserTokens: r.UserTokens, Items: append([]int32(nil), r.Items...)})
		}
		return all
	}
	if !reflect.DeepEqual(read(true), read(false)) {
		t.Error("the requests differ")
	}
}

// A stream that ends does so ahead too, and can be asked again.
func TestAheadEnds(t *testing.T) {
	s := small(t, func(s *Scenario) { s.Load.Rate = 1e-8 }) // times soon are too large
	f := &fleet{}
	var err error
	if f.source, err = newStream(s); err != nil {
		t.Fatal(err)
	}
	defer f.drawAhead()()
	n, r := 0, Request{}
	for f.source.Next(&r) {
		n++
	}
	if n == 0 || f.source.Next(&r) {
		t.Errorf("%d requests, and more after the end", n)
	}
}
