package profile

import (
	"strings"
	"testing"

	"grebe/sim"
)

// The work of a batch is counted from what the server decided from, less what was computed for others.
func TestRecorded(t *testing.T) {
	const log = `reuse0 decide predicted k1:0102030405060708 + 9 3 - 4 - 3 20 [0,0,0,0,0] [5,6] [missing,host] [0,0] ` +
		`0 0 0.5 + + 0 1000 1
reuse0 . order item cheaper + 1 0 1 0 0 0
dispatch0 admit 1 0 2
dispatch0 add 7 1 29 927 0 0 1
dispatch0 . run [7] [] 9
dispatch0 admit 2 0 2
dispatch0 ran 0 1 29 927 12.5 -
reuse0 decide predicted k1 + 9 3 - 4 - 3 20 [0,8,0,0,0] [5,6] [missing,host] [0,0] 0 0 0.5 + + 0 1000 2
reuse0 . order user cheaper + 1 0 1 0 0 0
dispatch0 add 8 2 36 852 0 0 2
dispatch0 . run [8] [] 9
dispatch0 ran 0 1 27 807 8 -
dispatch0 add 9 3 36 853 0 0 2
dispatch0 . run [9] [] 9
dispatch0 ran 0 1 36 853 8 -
`
	got, left, err := Recorded(strings.NewReader(log), &sim.Profile{Batches: &sim.Batches{Tile: 16}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Measured{
		// An item of 5 tokens, the user behind both items, and the question. The user has two tiles.
		{Work: sim.Work{Requests: 1, Rows: 29, Keys: 927, Tiled: 17 + (23 + 16) + (23 + 20) + 47, Segments: 3, Cached: 18},
			Arrived: 1, Ms: 12.5},
		// The preamble of 9 tokens was computed for another request: 45 keys.
		{Work: sim.Work{Requests: 1, Rows: 27, Keys: 807, Segments: 4}, Ms: 8},
	}
	if len(got) != 2 || left != 1 || got[0] != want[0] {
		t.Fatalf("%+v, %d left; want %+v", got, left, want[0])
	}
	if g := &got[1]; g.Rows != 27 || g.Keys != 807 || g.Segments != 4 || g.Arrived != 0 {
		t.Errorf("%+v, want %+v", g, want[1])
	}
}
