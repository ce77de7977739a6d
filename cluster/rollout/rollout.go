// Package rollout decides how a change of a model's checkpoint goes through a cluster: one node after the other, and
// back on all of them if one fails. It is pure: what nodes report comes in as an argument, and it says which node is
// next.
//
// A Record is the state of a change. It is stored in the coordinator, so every member can show it, and a member that
// takes over after the driver's death knows what was wanted.
//
// Rules:
//   - The first node that loads its checkpoint says which version is wanted. A node that loads another version has
//     failed.
//   - After a failure no further node changes. Nodes that changed return to the checkpoint before, the last one first.
//   - A node that is away when its turn comes is left out. One that vanishes during its turn has failed: the new
//     checkpoint may be the reason, and the next nodes must not follow it.
//   - A rollback that was asked for goes on after a failure, so that as many nodes as possible return.
package rollout

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// States of a change.
const (
	Running = "running"
	Done    = "done"   // all nodes that are there serve the wanted version
	Failed  = "failed" // nodes may have different versions: each says which
	// a node failed, those that had changed have returned, and all that answer serve one version
	RolledBack = "rolled_back"
)

// States of a node in a change.
const (
	Waiting  = "waiting"
	Changing = "changing"
	Changed  = "changed"
	Kept     = "kept"     // it serves what it served before: that is the wanted version, or its turn never came
	Away     = "away"     // it was not there when its turn came
	Broken   = "failed"   // it serves what it served before, or does not answer
	Returned = "returned" // it changed, and serves again what it served before
	Stuck    = "stuck"    // it changed and could not return
)

// Found is a node when a change begins.
type Found struct {
	ID, Boot string
	Version  string // that serves
	Before   string // version to which the node can return; empty: none
	Away     bool   // it does not answer
	Rests    bool   // it computes nothing, so that it cannot check a checkpoint
}

// Node is a node's part in a change.
type Node struct {
	ID       string  `json:"id"`
	Boot     string  `json:"boot,omitempty"`
	State    string  `json:"state"`
	Version  string  `json:"version,omitempty"`  // that serves; empty: unknown
	Step     string  `json:"step,omitempty"`     // of its own reload: loading, checking, warming, trying, draining
	Progress float64 `json:"progress,omitempty"` // of the step, 0 to 1
	Error    string  `json:"error,omitempty"`
	From     string  `json:"from,omitempty"`   // version that served when the change began
	Before   string  `json:"before,omitempty"` // version to which it could return then
}

// Record is a change of a model's checkpoint on all nodes. It is not safe for concurrent use.
type Record struct {
	Model  string `json:"model"`
	Driver string `json:"driver"` // the member that makes the change
	Boot   string `json:"boot"`   // of the driver
	Back   bool   `json:"back,omitempty"`
	State  string `json:"state"`
	To     string `json:"to,omitempty"` // the wanted version; of a reload: empty until the first node has it
	Error  string `json:"error,omitempty"`
	Nodes  []Node `json:"nodes"` // in the order of their turns
}

// Decode reads a record.
func Decode(data []byte) (r Record, err error) {
	if err = json.Unmarshal(data, &r); err == nil && (r.Model == "" || r.State == "") {
		err = errors.New("model or state is missing")
	}
	if err != nil {
		return r, fmt.Errorf("rollout: %.80q is no record: %w", data, err)
	}
	return r, nil
}

// Encode returns the record as JSON.
func (r *Record) Encode() []byte {
	data, _ := json.Marshal(r) // of strings and numbers
	return data
}

// Reload begins a change to the checkpoint that the nodes' configurations name. Nodes that compute come first, and
// the driver first of them.
func Reload(model, driver, boot string, found []Found) (*Record, error) {
	r := begin(model, driver, boot, found)
	if !slices.ContainsFunc(found, func(f Found) bool { return !f.Away }) {
		return nil, fmt.Errorf("no node that has model %s answers", model)
	}
	return r, nil
}

// Rollback begins a return to the checkpoint before. Last is the change before this one; its version is preferred if
// that change was a rollback that did not end well.
func Rollback(model, driver, boot string, found []Found, last Record) (*Record, error) {
	to, err := target(found, last)
	if err != nil {
		return nil, err
	}
	r := begin(model, driver, boot, found)
	r.Back, r.To = true, to
	for i := range r.Nodes {
		if n := &r.Nodes[i]; n.State == Waiting && n.Version == to {
			n.State = Kept
		}
	}
	return r, nil
}

func begin(model, driver, boot string, found []Found) *Record {
	r := &Record{Model: model, Driver: driver, Boot: boot, State: Running}
	place := func(f Found) int { // nodes that check first, and the driver first of them
		switch {
		case f.Rests:
			return 2
		case f.ID != driver:
			return 1
		}
		return 0
	}
	found = slices.SortedFunc(slices.Values(found), func(a, b Found) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.ID, b.ID))
	})
	for _, f := range found {
		n := Node{ID: f.ID, Boot: f.Boot, State: Waiting, Version: f.Version, From: f.Version, Before: f.Before}
		if f.Away {
			n.State = Away
		}
		r.Nodes = append(r.Nodes, n)
	}
	return r
}

// target returns the version that every node serves or can return to.
func target(found []Found, last Record) (string, error) {
	serving, there := map[string]int{}, []Found{}
	for _, f := range found {
		if !f.Away {
			there = append(there, f)
			serving[f.Version]++
		}
	}
	best := ""
	better := func(a, b string) bool {
		if wanted := last.Back && last.State != Done; wanted && (a == last.To) != (b == last.To) {
			return a == last.To
		}
		if serving[a] != serving[b] {
			return serving[a] > serving[b]
		}
		return a < b
	}
	for _, f := range there {
		possible := f.Before != "" && !slices.ContainsFunc(there,
			func(o Found) bool { return o.Version != f.Before && o.Before != f.Before })
		if possible && (best == "" || better(f.Before, best)) {
			best = f.Before
		}
	}
	if best != "" {
		return best, nil
	}
	var parts []string
	for _, f := range there {
		parts = append(parts, fmt.Sprintf("%s serves %.12s and had %.12s before", f.ID, f.Version, cmp.Or(f.Before, "none")))
	}
	return "", fmt.Errorf("the nodes have no earlier checkpoint in common: %s. Roll back single nodes with scope node",
		strings.Join(parts, "; "))
}

// Next returns the node whose turn it is, and whether it goes back to the checkpoint before. It returns false when the
// change is over; the record then says how it ended.
func (r *Record) Next() (id string, back, ok bool) {
	if r.Error == "" || r.Back {
		for i := range r.Nodes {
			if r.Nodes[i].State == Waiting {
				return r.begin(i), r.Back, true
			}
		}
	} else {
		for i := len(r.Nodes) - 1; i >= 0; i-- {
			if r.returns(&r.Nodes[i]) {
				return r.begin(i), true, true
			}
		}
	}
	r.finish()
	return "", false, false
}

func (r *Record) begin(i int) string {
	r.Nodes[i].State = Changing
	return r.Nodes[i].ID
}

// returns reports whether a node has to go back after a failure. That includes a node that an interrupted change had
// brought to the wanted version, if a node without that version serves the one before.
func (r *Record) returns(n *Node) bool {
	if n.State == Changed {
		return true
	}
	return n.State == Kept && n.Version == r.To && n.Before != "" && slices.ContainsFunc(r.Nodes, func(o Node) bool {
		return (o.State == Waiting || o.State == Broken) && o.From == n.Before
	})
}

// Result is how a node's turn ended.
type Result struct {
	Version   string // that serves; empty: it does not answer
	Unchanged bool   // it served the wanted checkpoint already
	Error     string // why it did not change; empty: it did
}

// Ended takes the result of the node whose turn it is.
func (r *Record) Ended(res Result) {
	i := slices.IndexFunc(r.Nodes, func(n Node) bool { return n.State == Changing })
	if i < 0 {
		return
	}
	n := &r.Nodes[i]
	n.Step, n.Progress, n.Version = "", 0, res.Version
	if r.Error != "" && !r.Back {
		r.hasReturned(n, res)
		return
	}
	if r.To == "" && (res.Unchanged || res.Error == "") {
		r.To = res.Version
	}
	switch {
	case res.Version == r.To && r.To != "" && res.Unchanged:
		n.State = Kept
	case res.Version == r.To && r.To != "" && res.Error == "":
		n.State = Changed
	case res.Error == "" && n.Version != n.From:
		n.State = Changed
		r.fail(n, fmt.Sprintf("it has version %.12s now, and other nodes have %.12s: give all nodes the same files",
			n.Version, r.To))
	case res.Error == "" || res.Unchanged:
		n.State = Broken
		r.fail(n, fmt.Sprintf("its configuration names version %.12s, that of other nodes %.12s: give all nodes the same "+
			"files", n.Version, r.To))
	default:
		n.State = Broken
		r.fail(n, res.Error)
	}
}

func (r *Record) hasReturned(n *Node, res Result) {
	want := n.From
	if n.From == r.To { // an earlier change had brought it there
		want = n.Before
	}
	if res.Error == "" && res.Version == want {
		n.State = Returned
		return
	}
	n.State, n.Error = Stuck, cmp.Or(res.Error, fmt.Sprintf("it serves version %.12s, not %.12s as before", res.Version,
		want))
}

func (r *Record) fail(n *Node, why string) {
	n.Error = why
	if r.Error == "" {
		r.Error = n.ID + ": " + why
	}
}

// Interrupt ends a reload before its next node: nodes that changed go back.
func (r *Record) Interrupt(why string) {
	if r.State == Running && r.Error == "" && !r.Back {
		r.Error = why
	}
}

// finish says how the change ended.
func (r *Record) finish() {
	count, versions := map[string]int{}, map[string]bool{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.State == Waiting {
			n.State = Kept
		}
		if n.State != Away && n.Version != "" {
			versions[n.Version] = true
		}
		count[n.State]++
	}
	switch {
	case r.Error == "" && count[Changed] == 0:
		r.State, r.Error = Failed, "every node serves the checkpoint already"
	case r.Error == "":
		r.State = Done
	case count[Stuck] > 0 || count[Returned] == 0 || len(versions) > 1:
		r.State = Failed
	default:
		r.State = RolledBack
	}
}
