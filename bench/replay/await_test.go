package replay

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// perToken is an engine that takes a millisecond per token.
type perToken struct{}

func (perToken) Check(j *engine.Job) (engine.Cost, error) {
	return engine.Cost{Rows: j.Plan.Tokens()}, nil
}
func (perToken) MaxTokens() int { return 1000 }
func (perToken) Run(jobs []*engine.Job, _ []engine.Outcome) {
	for _, j := range jobs {
		time.Sleep(time.Duration(j.Plan.Tokens()) * time.Millisecond)
	}
}

// Waits for another engine are replayed, also those that end because the other one left nothing.
func TestAwaitsAreReplayed(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		log := record.New(&out, 1<<20)
		m := schedule.PrefillModel{Row: 1, Quality: schedule.Quality{
			Largest: schedule.Sample{Rows: 100, Keys: 5050, Requests: 1}}}
		opt := dispatch.Options{SLO: time.Minute, Model: m, Record: log.Room("dispatch")}
		d, err := dispatch.New([]dispatch.Engine{perToken{}, perToken{}}, opt)
		if err != nil {
			t.Fatal(err)
		}
		var u engine.Underway
		done := make(chan error)
		for _, tokens := range []int{50, 60, 70} {
			p := &plan.Plan{Segments: []plan.Segment{
				{Kind: plan.User, Tokens: make([]int32, 50)}, {Kind: plan.Item, Tokens: make([]int32, tokens-50)},
			}}
			go func() {
				_, err := d.Do(t.Context(), &engine.Job{Plan: p, Segments: []engine.Segment{{Keep: true, Underway: &u}, {}}})
				done <- err
			}()
			time.Sleep(time.Millisecond)
		}
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	r, err := Run(strings.NewReader(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	if r.Different > 0 || r.Decisions["dispatch until"] < 3 || !strings.Contains(out.String(), "resume") {
		t.Errorf("%d decisions differ, %v:\n%s\n%s", r.Different, r.Decisions, strings.Join(r.Differences, "\n"),
			out.String())
	}
}
