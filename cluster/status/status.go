// Package status has the words in which a process describes its cluster. They are JSON at GET /v1/cluster of the admin
// listener.
package status

// Cluster is the cluster as one process sees it.
type Cluster struct {
	Name        string `json:"name"`
	Self        string `json:"self"`        // this process's node
	Coordinator string `json:"coordinator"` // up or away
	Epoch       uint64 `json:"epoch"`       // of the membership, as this process counts
	Routing     string `json:"routing"`     // policy
	Nodes       []Node `json:"nodes"`       // by id
	// Placement is nil if no map was published.
	Placement *Placement `json:"placement,omitempty"`
	// Rollouts are the last changes of models' checkpoints on all nodes, by model.
	Rollouts []Rollout `json:"rollouts,omitempty"`
	// Transfers are what this process fetched from others and sent to them.
	Transfers []Transfer `json:"transfers,omitempty"`
	// Changes are the last changes of nodes' states, the newest first, at most 50.
	Changes []Change `json:"changes,omitempty"`
}

// Node is a member.
type Node struct {
	ID       string   `json:"id"`
	State    string   `json:"state"` // ACTIVE, LEASE_LOST, SUSPECT
	Drained  bool     `json:"drained"`
	Ejected  bool     `json:"ejected"` // gets no requests but probes, because it is slower than predicted
	Roles    []string `json:"roles"`
	API      string   `json:"api"`  // host:port of its public API
	Peer     string   `json:"peer"` // host:port for other nodes
	Boot     string   `json:"boot"`
	Zone     string   `json:"zone,omitempty"`
	Numerics string   `json:"numerics,omitempty"` // class of devices that compute the same bits
	Models   []Model  `json:"models,omitempty"`
	Routed   int64    `json:"routed"` // requests that this process sent there
	Failed   int64    `json:"failed"` // of these

	// ProtocolMin and ProtocolMax are the versions of the protocol between members that it speaks.
	ProtocolMin int    `json:"protocol_min"`
	ProtocolMax int    `json:"protocol_max"`
	Keys        string `json:"keys,omitempty"`    // digest of the clients' keys that it knows; empty: it has none
	Refused     string `json:"refused,omitempty"` // why this process exchanges nothing with it; empty: it does
}

// Model is what a process knows about a model on a node.
type Model struct {
	Name      string  `json:"name"`
	Version   string  `json:"version"`
	BacklogMs float64 `json:"backlog_ms"` // predicted time until its queue is empty
	Entries   int     `json:"entries"`    // of KV, in this process's index
	Known     bool    `json:"known"`      // the index is up to date
	AgeMs     float64 `json:"age_ms"`     // since the last proof of that
	ErrorMs   float64 `json:"error_ms"`   // smoothed actual − predicted
	// SharesWith is the model of the same checkpoint on this node whose entries these are; "": they are its own.
	SharesWith string `json:"shares_with,omitempty"`
	// Shards is how many of the 1,024 parts of its item table the node has cached. RowMs is the measured time to fetch a
	// row. Both are 0 for models without a table.
	Shards int     `json:"shards,omitempty"`
	RowMs  float64 `json:"row_ms,omitempty"`
}

// Placement is the placement map in use.
type Placement struct {
	Epoch uint64 `json:"epoch"`
	Kind  string `json:"kind"`          // hash, or hot-cold if all nodes hold some items
	Hot   int    `json:"hot,omitempty"` // items that all nodes hold
	Nodes []Held `json:"nodes"`
	Moved int64  `json:"moved_bytes"` // still to be filled
}

// Held is a node's part of a placement map.
type Held struct {
	ID    string `json:"id"`
	Items int    `json:"items"`           // about
	Bytes int64  `json:"bytes,omitempty"` // 0: not known
	// Gone is true for a node that is not a member any more. It keeps its items for some 30 s, so that a restart moves
	// nothing. Without nodes that could own them, it keeps them for longer.
	Gone bool `json:"gone,omitempty"`
}

// Transfer counts blocks that moved between two nodes.
type Transfer struct {
	From   string  `json:"from"`
	To     string  `json:"to"`
	Blocks int64   `json:"blocks"`
	Bytes  int64   `json:"bytes"`
	Late   int64   `json:"late"` // that did not arrive in time, and were computed
	RateMB float64 `json:"rate_mb_s"`
	TripMs float64 `json:"trip_ms"`
}

// Change is a change of a node's state.
type Change struct {
	At   string `json:"at"` // RFC 3339 with milliseconds
	Node string `json:"node"`
	From string `json:"from"` // "" if it joined
	To   string `json:"to"`   // ACTIVE, LEASE_LOST, SUSPECT, GONE
}

// Rollout is a change of a model's checkpoint on all nodes.
type Rollout struct {
	Model  string        `json:"model"`
	State  string        `json:"state"`  // running; done, failed or rolled_back
	Driver string        `json:"driver"` // the member that makes the change
	Back   bool          `json:"back,omitempty"`
	To     string        `json:"to,omitempty"` // version that all nodes shall have, once it is known
	Error  string        `json:"error,omitempty"`
	Nodes  []RolloutNode `json:"nodes"` // in the order of their turns
}

// RolloutNode is a node's part in a Rollout.
type RolloutNode struct {
	ID       string  `json:"id"`
	State    string  `json:"state"` // waiting, changing, changed, kept, away, failed, returned or stuck
	Version  string  `json:"version,omitempty"`
	Step     string  `json:"step,omitempty"`     // while it is changing: loading, checking, warming, trying or draining
	Progress float64 `json:"progress,omitempty"` // of the step, 0 to 1
	Error    string  `json:"error,omitempty"`
}
