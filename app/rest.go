package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"grebe/cluster"
	"grebe/cluster/coord"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/reuse"
)

// A member without the role node holds KV or routes requests, and computes nothing. It opens its models on a device
// without weights: requests are described and KV is kept as on a node. Its engines refuse all jobs, so that the numbers
// of that device never become KV.

// errRests is the answer of engines of a process that computes nothing.
var errRests = errors.New("this process computes nothing: its cluster.roles have no node")

// resting is an engine that was measured and does no more work.
type resting struct{ dispatch.Engine }

// Check implements dispatch.Engine.
func (resting) Check(*engine.Job) (engine.Cost, error) { return engine.Cost{}, errRests }

// Run implements dispatch.Engine. No job passes Check.
func (resting) Run(jobs []*engine.Job, out []engine.Outcome) {
	for i := range jobs {
		out[i].Err = errRests
	}
}

// rest makes engines refuse all jobs if the process computes nothing.
func rest(cfg *config.Config, engines []dispatch.Engine) {
	for i := range engines {
		if !cfg.Computes() {
			engines[i] = resting{engines[i]}
		}
	}
}

// doing returns how a cache computes items ahead, in the background, or nil if nothing is computed.
func doing(cfg *config.Config, d *dispatch.Dispatcher) reuse.Do {
	if !cfg.Computes() {
		return nil
	}
	return func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		return d.Do(dispatch.Background(ctx), j)
	}
}

// classEvery is the time between two looks for a node.
const classEvery = 200 * time.Millisecond

// findClass finds the numerics class of the KV that a member without a device of its own holds: that of most nodes. It
// waits until there is a node.
func (a *App) findClass(ctx context.Context, cfg *config.Config, c coord.Coordinator) error {
	if cfg.Computes() || !cfg.Holds() {
		return nil
	}
	for told := false; ; {
		class, err := cluster.Class(ctx, c)
		if err == nil && class != "" {
			a.class = class
			return nil
		}
		if !told {
			a.log.Info("waiting for a member with the role node: its device determines the format of KV", "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a member with the role node: %w", ctx.Err())
		case <-time.After(classEvery):
		}
	}
}
