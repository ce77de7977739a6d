package decoder

import (
	"fmt"

	"grebe/compute"
)

// Trees returns where trees of valid paths go for Search, nil where the device runs no searches.
func (d *decoder) Trees() compute.Trees {
	t, _ := d.checkpoint.Device.(compute.Trees)
	return t
}

// Search computes the batch and then all rounds of a search that follows it; heads are those of the
// tree's levels. The leaves of prompt i are appended to out[i][:0].
func (d *decoder) Search(r compute.Searcher, b *compute.Batch, s *compute.Search, heads []compute.Linear,
	out [][]compute.Leaf) error {
	if len(heads) != len(s.Widths) || len(out) != len(s.Prompts) {
		return fmt.Errorf("decoder: a search of %d levels for %d prompts, with %d heads and room for %d results",
			len(s.Widths), len(s.Prompts), len(heads), len(out))
	}
	keep := make([]int32, len(s.Prompts))
	for i := range s.Prompts {
		keep[i] = s.Prompts[i].Row
	}
	if err := d.check(b, keep); err != nil {
		return err
	}
	if err := r.Begin(b); err != nil {
		return err
	}
	if err := r.Search(s); err != nil {
		return err
	}
	d.run(r, b, keep)
	r.Select(d.norm, heads[0])
	for _, head := range heads[1:] {
		r.Round()
		d.run(r, b, nil)
		r.Select(d.norm, head)
	}
	return r.Found(out)
}
