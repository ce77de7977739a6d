package sim

// ahead is a generator that runs before its requests are needed, in a goroutine of its own. The requests are the same.
// Drawing them takes a good part of a run, which the second core does.
type ahead struct {
	*generator
	full, free chan []Request
	stop, done chan struct{}
	batch      []Request // that is being read
	at         int       // next request of it
}

const (
	aheadBatch   = 64 // requests that change hands at once
	aheadBatches = 4
)

// drawAhead begins to draw requests, if the fleet's stream is a generator. The caller MUST call the function that it
// returns: it ends the goroutine.
func (f *fleet) drawAhead() (end func()) {
	g, ok := f.source.(*generator)
	if !ok {
		return func() {}
	}
	a := &ahead{
		generator: g, full: make(chan []Request, aheadBatches), free: make(chan []Request, aheadBatches),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range aheadBatches {
		a.free <- make([]Request, aheadBatch)
	}
	f.source = a
	go a.draw()
	return func() {
		close(a.stop)
		<-a.done
	}
}

// draw fills batches until there are no more requests, or the run ends.
func (a *ahead) draw() {
	defer close(a.done)
	defer close(a.full)
	for more := true; more; {
		var b []Request
		select {
		case b = <-a.free:
		case <-a.stop:
			return
		}
		n := 0
		for n < len(b) && more {
			if more = a.generator.Next(&b[n]); more {
				n++
			}
		}
		a.full <- b[:n] // there is room for all batches
	}
}

// Next takes the next request. It exchanges the slices of r for those of the request.
func (a *ahead) Next(r *Request) bool {
	for a.at == len(a.batch) {
		if a.batch != nil {
			a.free <- a.batch[:aheadBatch]
		}
		var more bool
		a.batch, more = <-a.full
		if a.at = 0; !more {
			return false
		}
	}
	*r, a.batch[a.at] = a.batch[a.at], *r
	a.at++
	return true
}
