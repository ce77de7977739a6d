package cuda

import (
	"testing"

	"grebe/compute/computetest"
)

func TestSearch(t *testing.T) {
	for name, opt := range map[string]Options{"graphs": {}, "plain": {Plain: true},
		"one by one": {NoGraphs: true, NoOverlap: true}} {
		t.Run(name, func(t *testing.T) {
			d := open(t, opt)
			defer d.Close()
			computetest.Search(t, d)
		})
	}
}
