package schedule

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// plainQueue is Batcher's specification with lists and loops: no heap, no running sum, no table of ids.
type plainQueue struct {
	config  BatcherConfig
	model   PrefillModel
	jobs    []plainJob // in order of arrival
	small   []time.Duration
	holding time.Duration
	passed  time.Duration
}

type plainJob struct {
	Job
	alone time.Duration // as predicted when it was added
	huge  bool
}

func (q *plainQueue) time(ms float64) time.Duration {
	return time.Duration(ms * (1 + q.config.Margin) * 1e6)
}

func (q *plainQueue) takes(jobs ...Job) time.Duration {
	if len(jobs) == 0 {
		return 0
	}
	rows, keys := 0, 0
	for _, j := range jobs {
		rows, keys = rows+j.Rows, keys+j.Keys
	}
	m := q.model
	perRow := m.Row*float64(rows) + m.Square*float64(rows*rows)
	return q.time(m.Fixed + perRow + m.Key*float64(keys) + m.Request*float64(len(jobs)))
}

func (q *plainQueue) target() time.Duration {
	return min(q.time(q.model.Fixed/(1-q.config.Efficiency)), q.config.SLO/2)
}

// list returns the small or the huge requests by deadline, then by arrival.
func (q *plainQueue) list(huge bool) []plainJob {
	var out []plainJob
	for _, j := range q.jobs {
		if j.huge == huge {
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b plainJob) int { return int(a.Deadline - b.Deadline) })
	return out
}

func (q *plainQueue) find(id uint64) int {
	return slices.IndexFunc(q.jobs, func(j plainJob) bool { return j.ID == id })
}

func (q *plainQueue) add(j Job) bool {
	if len(q.jobs) == q.config.Capacity || q.find(j.ID) >= 0 {
		return false
	}
	if j.Deadline == 0 {
		j.Deadline = j.Arrival + q.config.SLO
	}
	p := plainJob{Job: j, alone: q.takes(j)}
	p.huge = p.alone > q.config.SLO/2
	if !p.huge {
		if len(q.list(false)) == 0 {
			q.holding = j.Arrival
		}
		q.small = append(q.small, j.Arrival)
	}
	q.jobs = append(q.jobs, p)
	return true
}

func (q *plainQueue) remove(id uint64) bool {
	i := q.find(id)
	if i < 0 {
		return false
	}
	q.jobs = slices.Delete(q.jobs, i, i+1)
	if len(q.list(true)) == 0 {
		q.passed = 0
	}
	return true
}

// due returns when the next small request is expected: one mean gap from now.
func (q *plainQueue) due(now time.Duration) (time.Duration, bool) {
	if len(q.small) < 4 {
		return 0, false
	}
	mean, last := float64(q.small[1]-q.small[0]), q.small[1]
	for _, at := range q.small[2:] {
		mean += (float64(at-last) - mean) / 16
		last = at
	}
	return now + time.Duration(mean), float64(now-last) <= 8*mean
}

func (q *plainQueue) ahead(deadline time.Duration) time.Duration {
	fixed := q.time(q.model.Fixed)
	var work time.Duration
	n := 0
	for _, j := range q.jobs {
		if j.Deadline <= deadline {
			work, n = work+max(0, j.alone-fixed), n+1
		}
	}
	for batches := range n { // the fewest batches with room for the work
		if time.Duration(batches)*max(0, q.target()-fixed) >= work && q.target() > fixed {
			return work + time.Duration(batches)*fixed
		}
	}
	return work + time.Duration(n)*fixed
}

func (q *plainQueue) step(now time.Duration) (batch, shed []Job, wake time.Duration) {
	latest := func(j plainJob) time.Duration { return j.Deadline - j.alone - q.config.Answer }
	lost := slices.DeleteFunc(slices.Clone(q.jobs), func(j plainJob) bool { return latest(j) >= now })
	slices.SortStableFunc(lost, func(a, b plainJob) int { return int(latest(a) - latest(b)) })
	for _, j := range lost {
		q.remove(j.ID)
		shed = append(shed, j.Job)
	}
	meets := func(takes, deadline time.Duration) bool { return now+takes+q.config.Answer <= deadline }
	small, huge := q.list(false), q.list(true)
	var all []Job
	for _, j := range small {
		all = append(all, j.Job)
	}
	hugeIsNext := func() bool {
		return len(small) == 0 || q.passed >= huge[0].alone || meets(huge[0].alone+q.takes(all...), small[0].Deadline)
	}
	switch {
	case len(small)+len(huge) == 0:
		return nil, shed, Never
	case len(huge) > 0 && hugeIsNext():
		q.remove(huge[0].ID)
		if !meets(q.takes(huge[0].Job), huge[0].Deadline) {
			return nil, append(shed, huge[0].Job), now
		}
		q.passed = 0
		return []Job{huge[0].Job}, shed, Never
	}
	fits := func(jobs ...Job) bool {
		rows := 0
		for _, j := range jobs {
			rows += j.Rows
		}
		return q.takes(jobs...) <= q.target() && (q.config.MaxRows == 0 || rows <= q.config.MaxRows)
	}
	if len(huge) == 0 {
		var mean Job
		for _, j := range small {
			mean.Rows, mean.Keys = mean.Rows+j.Rows, mean.Keys+j.Keys
		}
		mean.Rows, mean.Keys = mean.Rows/len(small), mean.Keys/len(small)
		with := append(slices.Clone(all), mean)
		saved := q.takes(all...) + q.takes(mean) - q.takes(with...)
		due, known := q.due(now)
		if fits(with...) && known && time.Duration(len(small))*(due-now) < saved {
			until := min(due, q.holding+q.time(q.model.Fixed), small[0].Deadline-q.takes(with...)-q.config.Answer)
			if until > now {
				return nil, shed, until
			}
		}
	}
	for _, j := range small {
		next := append(slices.Clone(batch), j.Job)
		takes := q.takes(next...)
		if len(batch) == 0 {
			if !meets(takes, j.Deadline) {
				q.remove(j.ID)
				shed = append(shed, j.Job)
				continue
			}
		} else if !fits(next...) || !meets(takes, batch[0].Deadline) || takes >= q.takes(batch...)+j.alone {
			break
		}
		q.remove(j.ID)
		batch = next
	}
	if len(huge) > 0 {
		q.passed += q.takes(batch...)
	}
	return batch, shed, Never
}

// drawQueue returns a queue and its plain version. Times are whole milliseconds, so that many are equal or just in
// time.
func drawQueue(t *testing.T, rng *rand.Rand) (*Batcher, *plainQueue) {
	c := DefaultBatcher(1+rng.IntN(12), time.Duration(10+rng.IntN(60))*ms)
	c.Efficiency = []float64{.5, .75, .875}[rng.IntN(3)]
	c.MaxRows = rng.IntN(3) * rng.IntN(30)
	c.Margin = []float64{0, 0, .5}[rng.IntN(3)]
	c.Answer = time.Duration(rng.IntN(2)*rng.IntN(4)) * ms
	m := drawModel(rng)
	return newQueue(t, c, m), &plainQueue{config: c, model: m}
}

func drawModel(rng *rand.Rand) PrefillModel {
	part := func(n int) float64 { return float64(rng.IntN(n)) }
	square := part(2) * part(2) / 4
	return PrefillModel{Fixed: part(10), Row: part(3), Square: square, Key: part(2) / 2, Request: part(2)}
}

func same(a, b []Job) bool { return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b)) }

// The queue decides as its plain version does, whatever arrives, leaves or changes.
func TestBatcherAgainstPlainQueue(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 31))
		b, q := drawQueue(t, rng)
		now, span := time.Duration(0), 1+rng.IntN(12)
		for turn := range 120 {
			what := fmt.Sprintf("seed %d, turn %d, %v", seed, turn, now)
			switch op := rng.IntN(40); {
			case op < 22:
				now += time.Duration(rng.IntN(span)) * ms
				j := Job{ID: uint64(rng.IntN(40)), Rows: rng.IntN(8), Keys: rng.IntN(8), Arrival: now}
				if rng.IntN(8) == 0 {
					j.Rows += 20
				}
				if rng.IntN(2) == 0 {
					j.Deadline = now + time.Duration(rng.IntN(90))*ms
				}
				if got, want := b.Add(j), q.add(j); got != want {
					t.Fatalf("%s: add %+v: %v, want %v", what, j, got, want)
				}
			case op < 24:
				id := uint64(rng.IntN(40))
				if got, want := b.Remove(id), q.remove(id); got != want {
					t.Fatalf("%s: remove %d: %v, want %v", what, id, got, want)
				}
			case op == 24:
				q.model = drawModel(rng)
				b.SetModel(q.model)
			case op == 25:
				q.config.SLO = time.Duration(10+rng.IntN(60)) * ms
				b.SetSLO(q.config.SLO)
			case op == 26:
				q.config.Answer = time.Duration(rng.IntN(4)) * ms
				b.SetSlack(q.config.Margin, q.config.Answer)
			default:
				batch, shed, wake := b.Step(now)
				wantBatch, wantShed, wantWake := q.step(now)
				if !same(batch, wantBatch) || !same(shed, wantShed) || wake != wantWake {
					t.Fatalf("%s: batch %v, shed %v, wake %v, want %v, %v, %v",
						what, batch, shed, wake, wantBatch, wantShed, wantWake)
				}
				switch {
				case wake == now:
					seen["shed a huge one alone"]++
				case wake != Never:
					seen["held"]++
				case len(batch) > 1:
					seen["company"]++
				}
				if len(batch) > 0 { // the next step is when the batch ends, or a little before
					now += max(0, q.takes(batch...)-time.Duration(rng.IntN(3))*ms)
				} else if wake != Never {
					now = wake
				}
			}
			deadline := now + time.Duration(rng.IntN(90))*ms
			if got, want := b.Ahead(deadline), q.ahead(deadline); got != want {
				t.Fatalf("%s: %v ahead of %v, want %v", what, got, deadline, want)
			}
			if b.Len() != len(q.jobs) || b.Target() != q.target() {
				t.Fatalf("%s: %d wait for a target of %v, want %d and %v",
					what, b.Len(), b.Target(), len(q.jobs), q.target())
			}
		}
	}
	t.Log(seen)
	for _, what := range []string{"shed a huge one alone", "held", "company"} {
		if seen[what] < 50 {
			t.Errorf("%s: %d times, the draw tests too little", what, seen[what])
		}
	}
}
