package protocol

import "testing"

func TestParse(t *testing.T) {
	for s, want := range map[string][2]int{"1-1": {1, 1}, "1-2": {1, 2}, "2-3": {2, 3}} {
		if lowest, highest := parse(s); [2]int{lowest, highest} != want {
			t.Errorf("%q: %d to %d, want %v", s, lowest, highest, want)
		}
	}
	for _, s := range []string{"", "1", "0-1", "2-1", "a-b"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is accepted", s)
				}
			}()
			parse(s)
		}()
	}
}
