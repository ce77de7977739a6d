package client

import (
	"encoding/json"
	"errors"
)

// Item is an item of the catalog, or a candidate: one with text, tokens or attributes is taken as it is, any other
// one is looked up by its id.
type Item struct {
	ID         string              `json:"id,omitempty"`
	Text       string              `json:"text,omitempty"`
	Tokens     []int32             `json:"tokens,omitempty"`
	Identifier *int32              `json:"identifier,omitempty"` // the token that stands for the item
	Codes      []int32             `json:"codes,omitempty"`      // its semantic ID
	Attributes map[string][]string `json:"attributes,omitempty"`
}

// IDs are items of the catalog.
func IDs(ids ...string) []Item {
	out := make([]Item, len(ids))
	for i, id := range ids {
		out[i].ID = id
	}
	return out
}

// User is a user of the catalog, or whom a request is for: one with history, text, tokens or events is taken as it
// is, any other one is looked up by its id.
type User struct {
	ID      string   `json:"id,omitempty"`
	History []string `json:"history,omitempty"` // ids of items, oldest first
	Text    string   `json:"text,omitempty"`
	Tokens  []int32  `json:"tokens,omitempty"`
	Events  []Event  `json:"events,omitempty"`
	// NewEvents are events of this request that follow those of the catalog's user, or Events. They are not stored.
	NewEvents []Event `json:"new_events,omitempty"`
}

// Event is one thing a user did.
type Event struct {
	ID       string             `json:"id,omitempty"` // events with an id that was seen are ignored
	Item     string             `json:"item"`
	Time     int64              `json:"time,omitempty"` // seconds since 1970
	Action   int32              `json:"action,omitempty"`
	Features map[string]float64 `json:"features,omitempty"`
}

// RankRequest asks for an order of candidates.
type RankRequest struct {
	Model          string  `json:"model,omitempty"` // may be empty when one model is loaded
	User           User    `json:"user"`
	Candidates     []Item  `json:"candidates"`            // 1 to 10000
	TopK           int     `json:"top_k,omitempty"`       // 0: all
	Prefix         string  `json:"prefix,omitempty"`      // auto when empty
	DeadlineMillis int     `json:"deadline_ms,omitempty"` // at most limits.deadline_ms; 0: slo_ms
	RequestID      string  `json:"request_id,omitempty"`
	Explain        bool    `json:"explain,omitempty"` // fill Parts and Route
	Budget         *Budget `json:"budget,omitempty"`  // of a blended prompt; nil: the model's
}

// Budget is how much of a blended prompt is computed again. A share that is nil is the model's.
type Budget struct {
	Items   *float64 `json:"items,omitempty"`   // share of the items' tokens, 0 to 1
	History *float64 `json:"history,omitempty"` // share of the tokens of the history that have a prototype, 0 to 1
}

// RankResponse is an order of candidates, best first.
type RankResponse struct {
	Model     string   `json:"model"`
	RequestID string   `json:"request_id"`
	Prefix    string   `json:"prefix"`        // what was used
	Reason    string   `json:"prefix_reason"` // why
	Node      string   `json:"node"`
	Results   []Ranked `json:"results"`
	Usage     Usage    `json:"usage"`
	Timing    Timing   `json:"timing_ms"`
	Parts     []Part   `json:"parts"`
	Notes     []string `json:"notes"` // why the answer is worse than it could be
	Route     *Route   `json:"route"` // of a cluster, if Explain was set
}

// Route says why a node of a cluster answered.
type Route struct {
	PredictedMs     float64 `json:"predicted_ms"`
	Reason          string  `json:"reason"` // user, items, load, again or alone
	PredictedCached int     `json:"predicted_cached"`
}

// Ranked is a candidate's place.
type Ranked struct {
	Index int                `json:"index"` // in the request
	ID    string             `json:"id"`
	Score float64            `json:"score"`
	Logit float32            `json:"logit"`
	Tasks map[string]float64 `json:"tasks"` // of models that have several
}

// Part is a part of a prompt, and where its KV came from.
type Part struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Tokens int    `json:"tokens"`
	Cached int    `json:"cached"`
	Source string `json:"source"`
}

// RecommendRequest asks for items of the catalog.
type RecommendRequest struct {
	Model          string               `json:"model,omitempty"` // may be empty when one model is loaded
	User           User                 `json:"user"`
	N              int                  `json:"n,omitempty"`          // 0: 10
	BeamWidth      int                  `json:"beam_width,omitempty"` // 0: 128
	TopK           int                  `json:"top_k,omitempty"`      // 0: beam_width
	Exclude        []string             `json:"exclude,omitempty"`
	ExcludeSeen    bool                 `json:"exclude_seen,omitempty"`
	Filter         map[string]Condition `json:"filter,omitempty"`
	DeadlineMillis int                  `json:"deadline_ms,omitempty"` // as in RankRequest
	RequestID      string               `json:"request_id,omitempty"`

	Quota map[string]int                `json:"quota,omitempty"` // most results of a value of each attribute
	Boost map[string]map[string]float64 `json:"boost,omitempty"` // added to scores, by attribute and value
	// above 0: paths are sampled without replacement
	Temperature float64    `json:"temperature,omitempty"`
	Seed        *uint64    `json:"seed,omitempty"`     // of the samples; nil: the server draws one
	Fallback    string     `json:"fallback,omitempty"` // popular: for users of whom the model can read nothing
	Rank        *RankFound `json:"rank,omitempty"`     // nil: the found items are not ranked

	WholePrompt bool `json:"whole_prompt,omitempty"` // the user's text or tokens are the whole prompt
	OnePerPath  bool `json:"one_per_path,omitempty"` // of items with the same codes only the first comes back
	Explain     bool `json:"explain,omitempty"`      // fill Parts and Route
}

// Condition is what a filter says of one attribute. An item meets all parts that are there.
type Condition struct {
	Values []string // it has one of them; alone, without the other parts
	Not    []string // it has none of them
	// One of its values is within these bounds: numbers, or times as time.Time or strings such as 2026-01-31; nil: none.
	GTE, GT, LT, LTE any
}

// Any is the condition that an item has one of some values.
func Any(values ...string) Condition { return Condition{Values: values} }

// MarshalJSON writes a list of values, or an object with the other parts.
func (c Condition) MarshalJSON() ([]byte, error) {
	others := map[string]any{}
	for name, bound := range map[string]any{"gte": c.GTE, "gt": c.GT, "lt": c.LT, "lte": c.LTE} {
		if bound != nil {
			others[name] = bound
		}
	}
	if c.Not != nil {
		others["not"] = c.Not
	}
	switch {
	case len(others) == 0:
		return json.Marshal(c.Values)
	case c.Values != nil:
		return nil, errors.New("client: a condition has values and other parts: give one or the other")
	}
	return json.Marshal(others)
}

// RankFound says how the items that were found are ranked before they come back.
type RankFound struct {
	Model      string `json:"model,omitempty"`      // empty: the one that generates
	Candidates int    `json:"candidates,omitempty"` // to find and rank; 0: n
	Prefix     string `json:"prefix,omitempty"`     // as in RankRequest; empty: user
}

// RankedBy says how items that were found were ranked.
type RankedBy struct {
	Model      string `json:"model"`
	Prefix     string `json:"prefix"`
	Candidates int    `json:"candidates"`
	Usage      Usage  `json:"usage"`
	Timing     Timing `json:"timing_ms"`
}

// RecommendResponse is items of the catalog, best first.
type RecommendResponse struct {
	Model     string        `json:"model"`
	RequestID string        `json:"request_id"`
	Node      string        `json:"node"`
	Results   []Recommended `json:"results"`
	Short     bool          `json:"short"` // fewer than n came back
	// catalog: no more are eligible; beam: the search kept too few paths
	ShortReason    string    `json:"short_reason"`
	CatalogVersion string    `json:"catalog_version"`
	Seed           *uint64   `json:"seed"`     // of a sampled answer
	Fallback       string    `json:"fallback"` // popular: the results are items with many events
	Ranked         *RankedBy `json:"ranked"`   // nil: they were not ranked
	Usage          Usage     `json:"usage"`
	Timing         Timing    `json:"timing_ms"`
	Parts          []Part    `json:"parts"` // of the prompt of the search
	Notes          []string  `json:"notes"` // as of RankResponse
	Route          *Route    `json:"route"` // of a cluster, if Explain was set
}

// Recommended is an item of the catalog.
type Recommended struct {
	ID    string  `json:"id"`
	Codes []int32 `json:"codes"`
	Score float64 `json:"score"`
	Boost float64 `json:"boost"` // part of Score
	// RankScore is of results that were ranked.
	RankScore *float64 `json:"rank_score"`
}

// Usage counts tokens: prompt = user + item + instruction = cached + computed. Computed tokens passed all layers.
type Usage struct {
	Prompt      int            `json:"prompt_tokens"`
	Cached      int            `json:"cached_tokens"`
	Computed    int            `json:"computed_tokens"`
	User        int            `json:"user_tokens"`
	Item        int            `json:"item_tokens"`
	Instruction int            `json:"instruction_tokens"`
	BySource    map[string]int `json:"by_source"`
	Beam        int            `json:"beam_tokens"`
	// of Cached, those that passed the first layers of a blended prompt
	Partly int    `json:"partly_computed_tokens"`
	Beside int    `json:"beside_tokens"` // of items, computed beside a blended prompt for later ones
	Note   string `json:"note"`          // why nothing was reused, where a model cannot
}

// Timing is in milliseconds.
type Timing struct {
	Queue   float64 `json:"queue"`
	Fetch   float64 `json:"fetch"`
	Compute float64 `json:"compute"`
	Total   float64 `json:"total"`
}
