package reuse

import (
	"math"
	"testing"

	"grebe/schedule"
)

// The means follow the last rankings. Requests without candidates do not count.
func TestMeans(t *testing.T) {
	var m means
	m.note(10, 0, 0)
	if m.now != (Means{}) {
		t.Errorf("means %+v of no ranking", m.now)
	}
	m.note(10, 2, 8)
	m.note(30, 4, 8)
	if want := (Means{User: 20, Candidates: 3, Item: 3}); m.now != want {
		t.Errorf("means %+v, want %+v", m.now, want)
	}
	for range 20 * meansOver {
		m.note(100, 50, 1000)
	}
	if math.Abs(m.now.User-100) > 1e-3 || math.Abs(m.now.Candidates-50) > 1e-3 || math.Abs(m.now.Item-20) > 1e-3 {
		t.Errorf("means %+v after many rankings of 100, 50 and 20", m.now)
	}
	c := newMachine(t, 7, []int32{1, 2}, "", false)
	c.visitOf(t, &Request{UserID: "u", User: []int32{11, 12, 13}, Items: [][]int32{{21, 22}, {31}}, Policy: schedule.User})
	if want := (Means{User: 3, Candidates: 2, Item: 1.5}); c.Means() != want {
		t.Errorf("means %+v of one ranking, want %+v", c.Means(), want)
	}
}
