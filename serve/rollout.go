package serve

import (
	"context"

	grebev1 "grebe/api/grebe/v1"
)

// Checkpoint is a model's checkpoint on this node, and the last change of it.
type Checkpoint struct {
	Version   string // that serves
	Before    string // to which a rollback leads; empty: there is none
	State     string // of the last reload; empty: there was none
	Progress  float64
	Error     string
	Ended     bool // no reload is running
	Unchanged bool // the last one failed because the checkpoint serves already
}

// Checkpoint describes a model's checkpoint on this node.
func (s *Service) Checkpoint(model string) (Checkpoint, error) {
	sl, err := s.slot(model)
	if err != nil {
		return Checkpoint{}, err
	}
	sl.mu.Lock()
	c := Checkpoint{Version: sl.now.Version, Ended: true}
	if c.Before = sl.before.version; sl.before.reopen == nil {
		c.Before = ""
	}
	if sl.held != nil {
		c.Before = sl.held.Version
	}
	r := sl.reload
	sl.mu.Unlock()
	if r != nil {
		c.Ended = r.over()
		d := r.describe()
		c.State, c.Progress, c.Error, c.Unchanged = d.State, d.Progress, d.Error, r.unchanged.Load()
	}
	return c, nil
}

// ChangeCheckpoint begins a reload, or a rollback, on this node alone. It does not wait for the end. A reload that is
// running already is the one that was asked for.
func (s *Service) ChangeCheckpoint(model string, back bool) error {
	sl, err := s.slot(model)
	if err != nil {
		return err
	}
	if back {
		_, err = s.startRollback(sl)
		return err
	}
	sl.mu.Lock()
	running := sl.reload != nil && !sl.reload.over()
	sl.mu.Unlock()
	if running {
		return nil
	}
	_, err = s.startReload(sl, nil)
	return err
}

// everywhere reports whether a change is one of the whole cluster.
func (s *Service) everywhere(scope string) (bool, error) {
	switch scope {
	case "":
		return s.cfg.Cluster != nil, nil
	case "node":
		return false, nil
	case "cluster":
		if s.cfg.Cluster == nil {
			return false, Errorf(Unprocessable, "scope", "this server is not a member of a cluster")
		}
		return true, nil
	}
	return false, Errorf(InvalidArgument, "scope", "want node or cluster, not %s", Quoted(scope))
}

// rollOut changes a model's checkpoint on all nodes of the cluster.
func (s *Service) rollOut(ctx context.Context, sl *slot, back, wait bool) (*grebev1.Model, error) {
	end, err := s.cfg.Cluster.RollOut(ctx, sl.name, back)
	if err != nil {
		return nil, err
	}
	if wait {
		limit, cancel := context.WithTimeout(ctx, s.cfg.ReloadWait)
		defer cancel()
		r := end(limit)
		switch {
		case ctx.Err() != nil:
			return nil, AsError(ctx.Err())
		case r == nil: // it goes on; Model reports its progress
		case r.State == "failed" || r.State == "rolled_back" && !back:
			return nil, Errorf(Conflict, "", "the change of all nodes ended as %s: %s", r.State, r.Error)
		}
	}
	return s.describeModel(sl), nil
}

// startRollback returns to the checkpoint before: at once during a trial, otherwise by a reload.
func (s *Service) startRollback(sl *slot) (*reloading, error) {
	if r := sl.back("asked for"); r != nil {
		s.log.Info("rolled back", "model", sl.name)
		return r, nil
	}
	sl.mu.Lock()
	before := sl.before
	sl.mu.Unlock()
	if before.reopen == nil {
		return nil, Errorf(Conflict, "", "no other checkpoint served before this one")
	}
	return s.startReload(sl, &before)
}
