package dispatch

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
)

// gpu is an engine that computes in buckets of 128 rows, and prepares for seconds when it first sees one,
// and once more at the next sight.
type gpu struct {
	seen  map[int]int
	flat  bool // times do not grow
	sizes bool // it says for which sizes it prepares
}

func (g *gpu) Sizes(most int) (out []int) {
	for rows := 128; g.sizes && rows <= most; rows += 128 {
		out = append(out, rows)
	}
	return out
}

func (g *gpu) MaxTokens() int { return 100_000 }

func (g *gpu) Check(j *engine.Job) (engine.Cost, error) {
	n := j.Plan.Tokens()
	return engine.Cost{Rows: n, Keys: n * (n + 1) / 2}, nil
}

func (g *gpu) Run(jobs []*engine.Job, out []engine.Outcome) {
	n := 0
	for i, j := range jobs {
		out[i].Computed = j.Plan.Tokens()
		n += j.Plan.Tokens()
	}
	bucket := (n + 127) / 128
	took := 2*time.Millisecond + time.Duration(bucket-1)*600*time.Microsecond
	if g.flat {
		took = 2 * time.Millisecond
	}
	switch g.seen[bucket]++; g.seen[bucket] {
	case 1:
		took += 2 * time.Second
	case 2:
		took += 30 * time.Millisecond
	}
	time.Sleep(took)
}

// What a device prepares at a new size is no part of its times.
func TestProfileOfADeviceThatPrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		m, err := Profile(t.Context(), &gpu{seen: map[int]int{}}, 32768)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{128, 512, 1280, 2560} {
			want := 2 + float64(rows/128-1)*.6
			if got := m.Predict(rows, rows*rows/2, 1); math.Abs(got-want) > .35*want {
				t.Errorf("%d rows are predicted to take %.2f ms, want %.2f", rows, got, want)
			}
		}
		if took := time.Since(start); took > limit+5*time.Second {
			t.Errorf("the profile took %v", took)
		}
	})
}

// A device that says for which sizes it prepares has seen all of them when requests come.
func TestProfilePrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gpu{seen: map[int]int{}, sizes: true}
		m, err := Profile(t.Context(), g, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for bucket := 1; bucket <= prepared/128; bucket++ {
			if g.seen[bucket] == 0 {
				t.Errorf("no batch of %d rows was run", 128*bucket)
			}
		}
		if got := mostRows(g); got != prepared {
			t.Errorf("batches of %d rows at most, want %d", got, prepared)
		}
		if got := mostRows(&clockwork{}); got != 1000 {
			t.Errorf("batches of %d rows at most on a device that prepares nothing, want 1000", got)
		}
		if got, want := m.Predict(640, 640*640/2, 1), 2+4*.6; math.Abs(got-want) > .35*want {
			t.Errorf("640 rows are predicted to take %.2f ms, want %.2f", got, want)
		}
	})
}

// Times that do not grow are still a model, which grows.
func TestProfileOfConstantTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := Profile(t.Context(), &gpu{seen: map[int]int{}, flat: true}, 32768)
		if err != nil {
			t.Fatal(err)
		}
		small, large := m.Predict(1, 1, 1), m.Predict(100_000, 1, 1)
		if small < 2 || small > 3 || large < 10*small {
			t.Errorf("1 row is predicted to take %.2f ms, 100,000 rows %.2f", small, large)
		}
	})
}

// A slow model is not measured for longer than it must be.
func TestProfileOfASlowModelIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if _, err := Profile(t.Context(), &clockwork{}, 4096); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the profile took %v", took)
		}
	})
}
