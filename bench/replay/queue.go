package replay

import (
	"fmt"

	"grebe/internal/record"
	"grebe/schedule"
)

// queue replays which batches run, and what they teach.
type queue struct {
	answers // on waits for a disk
	config  schedule.BatcherConfig
	batcher *schedule.Batcher
	tuner   *schedule.Tuner
	job     schedule.Job   // that came last
	jobs    []schedule.Job // of the last step
	run     string
}

// tunerMemory is that of a dispatcher.
const tunerMemory = 256

func (q *queue) in(l *record.Line, _ []*record.Line) {
	v := &l.Values
	switch l.Op {
	case "open":
		v.Int()
		q.config = schedule.BatcherConfig{
			Capacity: v.Int(), SLO: v.Time(), MaxRows: v.Int(), Efficiency: v.Float(), Margin: v.Float(), Answer: v.Time(),
		}
	case "model":
		m := model(v)
		m.Quality.Largest = schedule.Sample{Rows: v.Int(), Keys: v.Int(), Requests: v.Int()}
		var err error
		if q.batcher, err = schedule.NewBatcher(q.config, m); err != nil {
			v.Fail(err)
		}
		if q.tuner, err = schedule.NewTuner(m, tunerMemory); err != nil {
			v.Fail(err)
		}
	case "add":
		q.job = schedule.Job{ID: v.Uint64()}
		v.Int()
		q.job.Rows, q.job.Keys, q.job.Arrival, q.job.Deadline = v.Int(), v.Int(), v.Time(), v.Time()
	case "remove":
		q.batcher.Remove(v.Uint64())
	case "step":
		v.Int()
		jobs, shed, wake := q.batcher.Step(v.Time())
		q.run = record.Text("run", ids(jobs), ids(shed), wake)
		q.jobs = jobs
	case "await":
		q.await(v)
	case "resume":
		q.batcher.Resume()
	case "disk":
		read, compute, queue := v.Time(), v.Time(), v.Float()
		q.decided("slower", schedule.SkipDisk(read, compute, queue))
	case "patience":
		takes, queue, deadline, left := v.Time(), v.Float(), v.Bool(), v.Time()
		q.decided("within", schedule.BlockWait(left, deadline, queue, takes))
	case "slo":
		q.batcher.SetSLO(v.Time())
	case "ran":
		v.Int()
		s := schedule.Sample{Requests: v.Int(), Rows: v.Int(), Keys: v.Int(), Ms: v.Float()}
		if !v.Bool() {
			q.tuner.Observe(s)
		}
	}
}

// await replays whether a job of the last step waits for KV that other engines compute.
func (q *queue) await(v *record.Values) {
	id, rows, keys, ends, since, now := v.Uint64(), v.Int(), v.Int(), v.Time(), v.Time(), v.Time()
	for i := range q.jobs {
		if j := &q.jobs[i]; j.ID == id {
			until := q.batcher.Await(j, rows, keys, ends, since, now)
			if q.decided("until", until); until > now {
				q.batcher.Hold(*j, until)
			}
			return
		}
	}
	v.Fail(fmt.Errorf("job %d waits, but did not run", id))
}

func (q *queue) did(l *record.Line) (was, now string) {
	v := &l.Values
	switch l.Op {
	case "queued", "full":
		if q.batcher.Add(q.job) {
			return text(l), "queued"
		}
		return text(l), "full"
	case "run":
		return text(l), q.run
	case "learnt":
		m := q.tuner.Model()
		model(v) // what was learnt is compared, and the slack taken as it was
		margin, answer := v.Float(), v.Time()
		q.batcher.SetModel(m)
		q.batcher.SetSlack(margin, answer)
		return text(l), record.Text("learnt", m.Fixed, m.Row, m.Square, m.Key, m.Request, margin, answer)
	}
	return q.answers.did(l)
}

func ids(jobs []schedule.Job) []uint64 {
	out := make([]uint64, len(jobs))
	for i := range jobs {
		out[i] = jobs[i].ID
	}
	return out
}
