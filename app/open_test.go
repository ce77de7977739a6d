package app

import (
	"testing"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/schedule"
)

// counting is an engine that counts its batches.
type counting struct{ batches int }

func (*counting) Check(j *engine.Job) (engine.Cost, error) {
	return engine.Cost{Rows: j.Plan.Tokens()}, nil
}
func (*counting) MaxTokens() int                        { return 4096 }
func (c *counting) Run([]*engine.Job, []engine.Outcome) { c.batches++ }

// A checkpoint of the shape of the one that serves takes over its prefill times. It is not measured, since that would
// slow down requests.
func TestACheckpointBesideAnotherIsNotMeasured(t *testing.T) {
	largest := schedule.Sample{Rows: 100, Keys: 5000, Requests: 1, Ms: 53}
	known := schedule.PrefillModel{Fixed: 3, Row: .5, Quality: schedule.Quality{Largest: largest}}
	d, err := dispatch.New([]dispatch.Engine{&counting{}}, dispatch.Options{Model: known})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	e := &counting{}
	times, err := profile(t.Context(), e, 4096, d)
	if err != nil || e.batches != 1 || times.Fixed != known.Fixed || times.Row != known.Row {
		t.Errorf("%d batches, %+v, %v; want 1, and the times of the other", e.batches, times, err)
	}
	if _, err = profile(t.Context(), e, 4096, nil); err != nil || e.batches < 10 {
		t.Errorf("%d batches without another checkpoint, %v; want it to be measured", e.batches, err)
	}
}
