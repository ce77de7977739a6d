package kv

import "testing"

// common finds the first difference wherever it is.
func TestCommon(t *testing.T) {
	a := make([]int32, 3*compared+5)
	for i := range a {
		a[i] = int32(i)
	}
	for at := range a {
		b := append([]int32(nil), a...)
		b[at]--
		if n := common(a, b); n != at {
			t.Errorf("%d tokens are common, want %d", n, at)
		}
		if n := common(a, a[:at]); n != at {
			t.Errorf("%d tokens are common with the first %d", n, at)
		}
	}
	if n := common(a, a); n != len(a) {
		t.Errorf("%d tokens of %d are common with themselves", n, len(a))
	}
}
