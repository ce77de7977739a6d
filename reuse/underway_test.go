package reuse

import (
	"testing"

	"grebe/plan"
)

// Requests that need the same KV share it until the last one leaves. Other tokens of a user are not the same KV.
func TestUnderway(t *testing.T) {
	var u underway
	one, two := plan.Key{1}, plan.Key{2}
	a, b := u.join(one, []int32{1, 2}), u.join(one, []int32{1, 2})
	if a == nil || a != b {
		t.Fatalf("two requests of one user have %p and %p", a, b)
	}
	if u.join(one, []int32{1, 3}) != nil || u.join(one, nil) != nil {
		t.Error("other tokens share the KV")
	}
	item := u.join(two, nil)
	if item == nil || item == a {
		t.Errorf("another key: %p", item)
	}
	u.leave(a)
	if u.join(one, []int32{1, 2}) != b {
		t.Error("one left, and a third does not share")
	}
	u.leave(b)
	u.leave(b)
	u.leave(item)
	if len(u.all) != 0 || len(u.free) != 2 {
		t.Errorf("%d are under way when all have left, %d free", len(u.all), len(u.free))
	}
	if c := u.join(one, []int32{9}); c == nil {
		t.Error("nothing is under way, but other tokens cannot be")
	} else {
		u.leave(c)
	}
	if n := testing.AllocsPerRun(100, func() { u.leave(u.join(two, nil)) }); n > 0 {
		t.Errorf("%v allocations per request", n)
	}
}
