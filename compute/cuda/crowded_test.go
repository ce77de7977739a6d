package cuda

import (
	"fmt"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
)

// TestCrowded: many cached segments on the GPU, in pinned memory and used in place, with scratch for 1 to 6 layers.
func TestCrowded(t *testing.T) {
	for _, v := range []struct {
		name string
		opt  Options
	}{{"graphs", Options{}}, {"plain", Options{Plain: true}}, {"one by one", Options{NoGraphs: true, NoOverlap: true}},
		{"direct", Options{Direct: true, NoGraphs: true}}} {
		for _, layers := range []int{1, 2, 3, 4, 5, 6} {
			if layers > 2 && v.name != "graphs" {
				continue
			}
			for _, at := range []string{"device", "host", "in place"} {
				t.Run(fmt.Sprintf("%s/%d layers/%s", v.name, layers, at), func(t *testing.T) {
					opt := v.opt
					opt.Scratch = layers * computetest.CrowdedScratch
					d := open(t, opt)
					defer d.Close()
					d.UseInPlace(at == "in place")
					var on compute.Device = d
					if at != "device" {
						on = fromHost{d}
					}
					computetest.Crowded(t, on)
				})
			}
		}
	}
}
