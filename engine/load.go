package engine

import "time"

// Load brings the KV of parts from below memory while a job waits and computes. A loading.Loading is one. Layers that
// compute all tokens need none of it. What has not come when rows are chosen is computed like any other token.
type Load interface {
	// Take sets the entries of the parts that came, after it waited for all that comes, no longer than w allows. It
	// returns how long it waited. The reader keeps its references until the job has ended.
	Take(parts []Part, w Wait) time.Duration
	// Stop ends all waits: nobody wants more.
	Stop()
}

// Wait is how long a batch may wait for a Load. Others who share the engine wait with it.
type Wait struct {
	Patience time.Duration // for all that the load brings, and less by what came; 0: as long as it takes
	First    time.Duration // about how long the device computes first layers meanwhile, which is no wait
	Waited   time.Duration // that the batch has waited for other jobs' loads
}

// load returns what brings KV for a job; nil: nothing does.
func (j *Job) load() Load {
	if j.Blend == nil {
		return nil
	}
	return j.Blend.Load
}

// Leave has nobody wait for what is read for a job: whoever wanted the answer is gone.
func (j *Job) Leave() {
	if l := j.load(); l != nil {
		l.Stop()
	}
}
