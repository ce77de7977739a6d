package app

import (
	"errors"
	"testing"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/config"
)

// A process without the role node computes nothing, whatever asks for it: its device's numbers would become KV.
func TestRestingEnginesRefuse(t *testing.T) {
	for _, roles := range [][]string{{"kv"}, {"router"}, {"kv", "router"}, {"node"}, {"node", "router"}} {
		cfg := &config.Config{Cluster: config.Cluster{Name: "c", Roles: roles}}
		engines := []dispatch.Engine{working{}}
		rest(cfg, engines)
		_, err := engines[0].Check(&engine.Job{})
		out := make([]engine.Outcome, 1)
		engines[0].Run([]*engine.Job{{}}, out)
		if rests := roles[0] != "node"; errors.Is(err, errRests) != rests || errors.Is(out[0].Err, errRests) != rests {
			t.Errorf("roles %v: check %v, run %v", roles, err, out[0].Err)
		}
		if (doing(cfg, &dispatch.Dispatcher{}) == nil) != (roles[0] != "node") {
			t.Errorf("roles %v: items are computed ahead, or not", roles)
		}
	}
}

// working is an engine that computes everything.
type working struct{ dispatch.Engine }

func (working) Check(*engine.Job) (engine.Cost, error) { return engine.Cost{}, nil }
func (working) Run([]*engine.Job, []engine.Outcome)    {}
