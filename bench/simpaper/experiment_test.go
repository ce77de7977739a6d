package simpaper

import (
	"testing"
)

// Every comparison names runs that there are, and has one value of the paper.
func TestExperimentsAreComplete(t *testing.T) {
	for _, name := range Names() {
		e, err := Load(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.Name != name || e.Paper == "" || len(e.Assumptions) == 0 {
			t.Errorf("%s: name %q, paper %q, %d assumptions", name, e.Name, e.Paper, len(e.Assumptions))
		}
		runs := map[string]bool{"": true}
		for _, r := range e.Runs {
			if runs[r.Name] {
				t.Errorf("%s: two runs are called %q", name, r.Name)
			}
			runs[r.Name] = true
		}
		for _, c := range e.Compare {
			for _, pair := range append(c.Largest, [2]string{c.Of, c.To}) {
				if !runs[pair[0]] || !runs[pair[1]] {
					t.Errorf("%s: %s: no run %q or %q", name, c.What, pair[0], pair[1])
				}
			}
			set := 0
			for _, has := range []bool{c.Paper != 0, c.Range != nil, c.Least != 0} {
				if has {
					set++
				}
			}
			if set != 1 || (c.Of == "") == (len(c.Largest) == 0) {
				t.Errorf("%s: %s: want one value of the paper, and runs", name, c.What)
			}
		}
	}
	if _, err := Load("none"); err == nil {
		t.Error("an unknown experiment is found")
	}
}
