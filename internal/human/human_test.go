package human

import "testing"

func TestCount(t *testing.T) {
	for n, want := range map[int64][3]string{
		0: {"0 items", "0 entries", "0 rows are"},
		1: {"1 item", "1 entry", "1 row is"},
		2: {"2 items", "2 entries", "2 rows are"},
	} {
		if got := [3]string{Count(n, "item"), Count(int(n), "entry"), Are(n, "row")}; got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
