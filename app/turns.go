package app

import (
	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/dispatch"
)

// openTurns gives each GPU turns that all models share. A GPU runs as many batches at once as one model has workers on
// it. Models on the CPU compute at once: the system divides its cores.
func (a *App) openTurns(workers int) {
	a.turns = map[compute.Device]*dispatch.Turns{}
	for _, d := range a.devices {
		if _, gpu := d.(cuda.Device); gpu {
			a.turns[d] = dispatch.NewTurns((workers + len(a.devices) - 1) / len(a.devices))
		}
	}
}

// turnsOf returns the turns of a model's engines, in the order of workers.
func (a *App) turnsOf(workers int, replicas []replica) []*dispatch.Turns {
	out := make([]*dispatch.Turns, workers)
	for i := range out {
		out[i] = a.turns[replicas[i%len(replicas)].device]
	}
	return out
}
