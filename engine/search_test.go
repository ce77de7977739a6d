package engine

import (
	"errors"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/plan"
)

// searchingModel and searchingRunner stand for a device that searches by itself; what they compute is not asked for.
type searchingModel struct{ Model }

func (searchingModel) Search(compute.Searcher, *compute.Batch, *compute.Search, []compute.Linear,
	[][]compute.Leaf) error {
	return errors.New("not asked for")
}

type searchingRunner struct{ compute.Searcher }

type depth int

func (d depth) Depth() int { return int(d) }

func (depth) Items() int { return 1 }

// A search ends at the model's last position, and not behind it; it has at most as many beams as a batch has rows.
func TestCheckSearch(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := newTiny(t, dev, "f32", Options{MaxTokens: 64})
	w := &Engine{model: searchingModel{e.model}, runner: searchingRunner{}, opt: e.opt}
	most := e.model.MaxPositions()
	check := func(s Search) error {
		s.Tree, s.Heads = depth(len(s.Widths)), make([]compute.Linear, len(s.Widths))
		return w.checkSearch(&Job{Plan: &plan.Plan{Segments: []plan.Segment{{Tokens: []int32{1}}}}, Search: &s})
	}
	for _, c := range []struct {
		name     string
		position int
		widths   []int
		want     string
	}{
		{"first positions", 0, []int{64, 64}, ""},
		{"last positions", most - 1, []int{8, 8}, ""},
		{"one too far", most, []int{8, 8}, "position"},
		{"before the first", -1, []int{8, 8}, "position"},
		{"as many beams as rows", 0, []int{64, 1000}, ""},
		{"more beams than rows", 0, []int{65, 8}, "65 beams"},
		{"no levels", 0, nil, "levels"},
	} {
		if err := check(Search{Position: c.position, Limits: compute.Limits{
			Widths: c.widths}}); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := e.checkSearch(&Job{Search: &Search{Limits: compute.Limits{Widths: []int{1}}}}); !errors.Is(err,
		compute.ErrNoSearch) {
		t.Errorf("a device that cannot search: %v", err)
	}
}
