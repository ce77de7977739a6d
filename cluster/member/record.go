package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/schedule"
)

// Record is what a node publishes about itself under nodes/<id>.
type Record struct {
	ID       string   `json:"id"`
	Boot     string   `json:"boot"` // unique to this start of the process
	API      string   `json:"api"`  // host:port of the public API
	Peer     string   `json:"peer"` // host:port for other nodes: probes, feed, blocks
	Protocol Protocol `json:"protocol"`
	Roles    []string `json:"roles"` // any of Node, KV, Router
	Models   []Model  `json:"models,omitempty"`
	Capacity Capacity `json:"capacity"`
	Zone     string   `json:"zone,omitempty"`
	Draining bool     `json:"draining,omitempty"` // the process is about to stop
	Keys     string   `json:"keys,omitempty"`     // digest of the clients' keys, to compare; empty: it has none
}

// The roles of a process.
const (
	Node   = "node"   // holds KV and computes
	KV     = "kv"     // holds KV
	Router = "router" // accepts requests and picks a node
)

// Protocol is the range of peer protocol versions that a process speaks.
type Protocol struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

func (p Protocol) String() string {
	if p.Min == p.Max {
		return fmt.Sprintf("version %d", p.Min)
	}
	return fmt.Sprintf("versions %d to %d", p.Min, p.Max)
}

// Common returns the highest version that both speak; false: there is none.
func (p Protocol) Common(q Protocol) (int, bool) {
	v := min(p.Max, q.Max)
	return v, v >= max(p.Min, q.Min)
}

// Model is a model that a node serves. Nodes exchange blocks of KV only if digest, format and numerics are equal.
type Model struct {
	Name     string `json:"name"`
	Version  string `json:"version,omitempty"` // of the checkpoint and its settings, for people to see
	Digest   string `json:"digest"`            // of the weights and the format of KV
	Format   string `json:"format"`            // of KV
	Numerics string `json:"numerics"`          // the class of devices that compute the same bits
	// Costs are the times that the node measured, by which routers compare nodes.
	Costs schedule.Costs `json:"costs"`
}

// Capacity is memory for KV in bytes, and the relative speed of computation.
type Capacity struct {
	Device int64   `json:"device,omitempty"`
	Host   int64   `json:"host,omitempty"`
	Disk   int64   `json:"disk,omitempty"`
	Speed  float64 `json:"speed,omitempty"` // of the cluster's reference node; 0: unknown
}

// Validate checks a record.
func (r Record) Validate() error {
	switch {
	case r.ID == "" || r.Boot == "":
		return errors.New("member: a record needs an id and a boot id")
	case r.Peer == "":
		return fmt.Errorf("member: %s has no address for peers", r.ID)
	case r.Protocol.Min < 1 || r.Protocol.Max < r.Protocol.Min:
		return fmt.Errorf("member: %s speaks protocols %d to %d", r.ID, r.Protocol.Min, r.Protocol.Max)
	case len(r.Roles) == 0:
		return fmt.Errorf("member: %s has no role", r.ID)
	}
	for _, m := range r.Models {
		if m.Name == "" || m.Digest == "" || m.Format == "" || m.Numerics == "" {
			return fmt.Errorf("member: %s has a model without name, digest, format or numerics", r.ID)
		}
	}
	return nil
}

// Has reports whether the process has a role.
func (r Record) Has(role string) bool { return slices.Contains(r.Roles, role) }

// Differs reports whether other processes have to learn of a new record. Measured times that differ by less than a
// tenth do not matter.
func (r Record) Differs(o Record) bool {
	if len(r.Models) != len(o.Models) {
		return true
	}
	o.Models = slices.Clone(o.Models)
	for i := range o.Models {
		if r.Models[i].near(o.Models[i]) {
			o.Models[i].Costs = r.Models[i].Costs
		}
	}
	return !equal(r, o)
}

// near reports whether the times of two models differ little.
func (m Model) near(o Model) bool {
	a, b := m.Costs, o.Costs
	return near(a.Model.Fixed, b.Model.Fixed) && near(a.Model.Row, b.Model.Row) && near(a.Model.Square, b.Model.Square) &&
		near(a.Model.Key, b.Model.Key) && near(a.Model.Request, b.Model.Request) && a.Keep == b.Keep &&
		slices.EqualFunc(a.Transfer[:], b.Transfer[:], func(s, t schedule.Transfer) bool {
			return near(s.Entry, t.Entry) && near(s.Token, t.Token)
		})
}

func near(a, b float64) bool { return math.Abs(a-b) <= .1*max(a, b) }

// Encode returns the record as JSON.
func (r Record) Encode() ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// Decode reads a record. It ignores fields and roles that it does not know: a newer release may have written them.
func Decode(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("member: %.80q is no record: %w", data, err)
	}
	return r, r.Validate()
}
