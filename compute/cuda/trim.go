package cuda

import "grebe/compute"

// Trim makes the runner a compute.Trimmer: it gives back graphs, attention's scratch, and all that searches prepared.
// Activations and tables stay; the next batch needs them whatever its size.
func (r *runner) Trim() {
	r.giveUp()
	defer r.dev.c.Leave()
	if r.dev.c.Enter() != nil {
		return // lost, with all its memory
	}
	_ = r.stream.Sync()
	r.err = errNoBatch
	r.graphs.drop()
	r.calls = nil
	if r.att != nil {
		r.att.close()
		r.att = nil
	}
	r.search.close(r.dev)
	r.search = searching{times: timeline{on: r.search.times.on}}
	r.dev.free(r.result)
	r.result, r.room = 0, 0
}

var _ compute.Trimmer = (*runner)(nil)
