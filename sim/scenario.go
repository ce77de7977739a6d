package sim

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grebe/evict"
	"grebe/internal/config"
	"grebe/plan"
	"grebe/route"
	"grebe/schedule"
)

// Scenario says what to simulate. Default has the values of keys that a file leaves out.
type Scenario struct {
	Name     string   `yaml:"name"`
	Seed     uint64   `yaml:"seed"`
	Requests int      `yaml:"requests"` // to send; 0: as many as come in duration
	Duration Duration `yaml:"duration"` // to send requests for; 0: until there are no more
	Warmup   Duration `yaml:"warmup"`   // requests of this time are served and not counted
	SLO      Duration `yaml:"slo"`      // that batches aim for, and that a request is counted against; 200ms
	Deadline Duration `yaml:"deadline"` // of a request, after which nobody wants its answer; the SLO
	Queue    int      `yaml:"queue"`    // most requests that wait at a node; 1024
	Batch    int      `yaml:"batch"`    // 1: a batch has one request; 0: as many as the batcher takes

	Prompt     Prompt     `yaml:"prompt"`
	Load       Load       `yaml:"load"`
	Users      Users      `yaml:"users"`
	Items      Items      `yaml:"items"`
	Trace      Trace      `yaml:"trace"`
	Fleet      Fleet      `yaml:"fleet"`
	Cache      Cache      `yaml:"cache"`
	Embeddings Embeddings `yaml:"embeddings"`
	Network    Network    `yaml:"network"`
	Placement  Placement  `yaml:"placement"`
	Route      Route      `yaml:"route"`
	Events     []Event    `yaml:"events"` // what happens to nodes
	Sweep      Sweep      `yaml:"sweep"`

	policy   schedule.Policy
	orders   schedule.Orders
	router   route.Policy
	profiles []*Profile // by node
	recorded *trace     // the file of Trace, once it was read
}

// Prompt has the tokens that all prompts share, and how the prefix order is chosen.
type Prompt struct {
	Preamble  int      `yaml:"preamble"`
	LeadIn    int      `yaml:"lead_in"`
	Question  int      `yaml:"question"`  // 16
	Pointwise bool     `yaml:"pointwise"` // each candidate has its own question
	Policy    string   `yaml:"policy"`    // of prefix orders: see schedule.ParsePolicy; predicted
	Orders    []string `yaml:"orders"`    // that the policy may choose: user, item; both
	Blend     Blend    `yaml:"blend"`     // ordinary prompts with KV from anywhere, instead of prefix orders
}

// Blend says which shares of the tokens whose KV is reused are computed again (RCL-5). KV of the history is that of
// prototypes, which all nodes have; KV of items is what the node has cached. Items that it lacks are computed and not
// kept.
type Blend struct {
	History float64 `yaml:"history"`
	Items   float64 `yaml:"items"`
	Whole   float64 `yaml:"whole"` // share of the layers that compute all tokens
	Auto    bool    `yaml:"auto"`  // only where that is predicted to be faster than the chosen prefix order
}

func (b *Blend) on() bool { return b.History > 0 || b.Items > 0 }

// blending returns what routers predict with. They count layers, of which one computes all tokens.
func (b *Blend) blending() schedule.Blending {
	return schedule.Blending{Layers: int(1/max(b.Whole, 1e-6) + .5), Budget: b.Items}
}

// Load says when requests arrive.
type Load struct {
	Rate    float64 `yaml:"rate"`    // requests per second, on average
	Process string  `yaml:"process"` // poisson or uniform; poisson
	// Bursts: every Every, the rate is Factor times as high for Length.
	Burst Burst `yaml:"burst"`
	// Trend is the rate at the end, as a multiple of the one at the beginning; 1. It needs a duration.
	Trend float64 `yaml:"trend"`
	// Times is a file with the arrival times of a recording, instead of a process: .csv as of Azure's LLM traces, or
	// .jsonl as of Mooncake's. It is played so that the mean rate is Rate.
	Times string `yaml:"times"`
	// Clients, if not 0, send one request after the other each, and there is no rate: a closed loop.
	Clients int `yaml:"clients"`
}

// Burst is a time with a higher rate that comes again and again.
type Burst struct {
	Every  Duration `yaml:"every"`
	Length Duration `yaml:"length"`
	Factor float64  `yaml:"factor"`
}

// Users says who sends requests.
type Users struct {
	Count int     `yaml:"count"`
	Zipf  float64 `yaml:"zipf"` // exponent of the law by which users are drawn; 0: all are equally likely
	// of users, one per line: weight and tokens, between blanks; instead of count, zipf and tokens
	File   string  `yaml:"file"`
	Tokens Lengths `yaml:"tokens"`
	Growth float64 `yaml:"growth"` // tokens that a user's history grows by between two requests, on average
}

// Items says what is ranked.
type Items struct {
	Count      int     `yaml:"count"`
	Zipf       float64 `yaml:"zipf"` // exponent of the law by which candidates are drawn
	Flat       int     `yaml:"flat"` // ranks by which the head of the law is flattened (Zipf–Mandelbrot); candidates
	Tokens     Lengths `yaml:"tokens"`
	Candidates int     `yaml:"candidates"` // distinct items of a request; 100
	// Generator of candidates: zipf draws all of them by the law. Communities draws a share of them among the items of
	// the user's own community, by the same law, and the rest among all items.
	Generator   string  `yaml:"generator"`   // zipf or communities; zipf
	Communities int     `yaml:"communities"` // how many there are
	Share       float64 `yaml:"share"`       // of a request's candidates that come from the user's community
}

// Lengths is a log-normal distribution of token counts, as in package workload.
type Lengths struct {
	Mean  float64 `yaml:"mean"`
	Sigma float64 `yaml:"sigma"`
	Min   int     `yaml:"min"` // 1
	Max   int     `yaml:"max"` // 8192
}

// Trace names a file of requests, instead of users and items.
type Trace struct {
	File    string  `yaml:"file"`
	Speedup float64 `yaml:"speedup"` // times as fast as recorded; 1
	Repeat  bool    `yaml:"repeat"`  // begin again at its end
}

// Fleet says which nodes there are.
type Fleet struct {
	Nodes    int      `yaml:"nodes"`
	Spare    int      `yaml:"spare"`    // nodes that are off at the beginning, for events that add one
	Profile  string   `yaml:"profile"`  // of all nodes
	Profiles []string `yaml:"profiles"` // of the nodes in turn, if they differ
	Workers  int      `yaml:"workers"`  // engines of a node; 1
	Device   Bytes    `yaml:"device"`   // the device's memory for KV; the profile's
	Host     Bytes    `yaml:"host"`     // host memory for KV; the profile's
	Boot     Duration `yaml:"boot"`     // time that a node takes to start; 10s
}

// Cache says how nodes keep KV.
type Cache struct {
	Policy     string `yaml:"policy"`      // of eviction; default
	Predict    bool   `yaml:"predict"`     // the policy uses predictions of models that learn, as a server's does; false
	ItemMemory Bytes  `yaml:"item_memory"` // host memory of items alone; 0: users and items share all memory
	Slots      int    `yaml:"slots"`       // most entries of a level of memory; 0: half a million
	Users      int    `yaml:"users"`       // whose frequency a node counts; 65536
	Items      int    `yaml:"items"`       // whose frequency a node counts; 65536
	KeepPeer   bool   `yaml:"keep_peer"`   // KV that a peer sent is cached; true
	// Page is the size of a server's pages of KV memory: an entry needs adjacent ones, so memory that is nearly full has
	// gaps. 0: memory has none. A server's page is the largest power of two up to 64 KiB that divides the KV of a token.
	Page Bytes `yaml:"page"`
}

// Network connects nodes. Every node has one card, whose two directions are used by one transfer at a time.
type Network struct {
	Bandwidth Bandwidth `yaml:"bandwidth"` // of a card, each way; 0: nodes do not exchange KV
	Latency   Duration  `yaml:"latency"`   // one way, between any two machines; 50us
	Exchange  bool      `yaml:"exchange"`  // nodes ask each other for KV; true
	// Overlap: KV is fetched while a request waits for its batch. Without it, the batch waits for the KV of its requests,
	// as in servers that fetch inside the forward pass. true
	Overlap bool `yaml:"overlap"`
	// Holders: without a placement map, nodes ask those that hold an entry by their feeds, as a server's nodes do. false
	Holders bool `yaml:"holders"`
}

// Placement says which node holds which item.
type Placement struct {
	Kind    string   `yaml:"kind"`    // none, hash, replicate, hot-cold or similar; none
	Refresh Duration `yaml:"refresh"` // after which the map is made again; 60s, of similar 1h
	// requests of the past that the first map is made of, if the stream knows them; 10000
	Sample  int     `yaml:"sample"`
	Preload bool    `yaml:"preload"` // items are in memory at the beginning, as far as they fit
	Push    bool    `yaml:"push"`    // an item that another node computed is sent to its owner; true
	Alpha   float64 `yaml:"alpha"`   // of hot-cold: tolerated communication, as a share of compute; 1
	Printed bool    `yaml:"printed"` // of hot-cold: R_max as the paper prints it
	Hot     float64 `yaml:"hot"`     // share of the items on all nodes; of similar: 0.001; of hot-cold: by Algorithm 1
	Fill    float64 `yaml:"fill"`    // share of the free bandwidth that filling may use; 0.5
}

// Route says how routers choose nodes.
type Route struct {
	Policy  string `yaml:"policy"`  // see route.ParsePolicy; predicted
	Routers int    `yaml:"routers"` // 1
	// every node routes what enters there, as servers do; routers is not used then; false
	Inside    bool     `yaml:"inside"`
	Heartbeat Duration `yaml:"heartbeat"` // 100ms
	Delay     Duration `yaml:"delay"`     // of feeds and heartbeats; the latency
	Ring      int      `yaml:"ring"`      // events that a feed keeps; 65536
	Users     int      `yaml:"users"`     // copies of users that a router knows; 65536 per node
	Items     int      `yaml:"items"`     // other entries that a router knows; 65536 per node
	Alpha     float64  `yaml:"alpha"`     // of affinity (RCL-4); 1
	Beta      float64  `yaml:"beta"`      // of affinity (RCL-4); 1
	// MissKV, MissEMB and MissLoad are the costs of joint (HLM-5) in milliseconds: of a user whose KV is missing, of a
	// request whose embeddings are missing, and of a full load.
	MissKV   float64 `yaml:"miss_kv"`   // 20
	MissEMB  float64 `yaml:"miss_emb"`  // 10
	MissLoad float64 `yaml:"miss_load"` // 20
}

// Event is something that happens to a node.
type Event struct {
	At     Duration `yaml:"at"`
	Do     string   `yaml:"do"`     // fail, start, slow, restart (after it is empty) or drain
	Node   int      `yaml:"node"`   // -1 with restart: all, one after the other
	Factor float64  `yaml:"factor"` // of slow: times as long
	For    Duration `yaml:"for"`    // of fail and slow: how long; 0: to the end
}

// Sweep repeats the run at several loads. If there are none, and Find is set, it looks for the highest rate at the SLO.
type Sweep struct {
	Rates  []float64 `yaml:"rates"`
	Find   bool      `yaml:"find"`
	Within float64   `yaml:"within"` // share of requests that must be answered within the SLO; 0.99
	From   float64   `yaml:"from"`   // first rate; load.rate
	Digits float64   `yaml:"digits"` // relative width of the last step; 0.02
}

// Default returns a scenario with the defaults.
func Default() *Scenario {
	return &Scenario{
		Seed: 1, SLO: ms(200), Queue: 1024,
		Prompt:     Prompt{Question: 16, Policy: "predicted"},
		Load:       Load{Process: "poisson", Trend: 1, Burst: Burst{Factor: 1}},
		Users:      Users{Tokens: Lengths{Min: 1, Max: 8192}},
		Items:      Items{Candidates: 100, Generator: "zipf", Tokens: Lengths{Min: 1, Max: 8192}},
		Trace:      Trace{Speedup: 1},
		Fleet:      Fleet{Nodes: 1, Workers: 1, Boot: Duration{10 * time.Second}},
		Cache:      Cache{Policy: "default", Users: 1 << 16, Items: 1 << 16, KeepPeer: true},
		Embeddings: Embeddings{Share: .5, Controller: "climb"},
		Network:    Network{Latency: Duration{50 * time.Microsecond}, Exchange: true, Overlap: true},
		Placement:  Placement{Kind: "none", Sample: 10000, Push: true, Alpha: 1, Fill: .5},
		Route: Route{
			Policy: "predicted", Routers: 1, Heartbeat: ms(100), Ring: 1 << 16, Alpha: 1, Beta: 1, MissKV: 20, MissEMB: 10,
			MissLoad: 20,
		},
		Sweep: Sweep{Within: .99, Digits: .02},
	}
}

func ms(n int) Duration { return Duration{time.Duration(n) * time.Millisecond} }

// ReadScenario reads a scenario from a YAML file. Paths in it are relative to the file. Change, which may be nil, is
// applied before the scenario is checked. Errors name the line.
func ReadScenario(file string, change func(*Scenario)) (*Scenario, error) {
	s := Default()
	err := config.Read(file, "the scenario", s, func() error {
		for _, p := range []*string{&s.Trace.File, &s.Users.File, &s.Load.Times, &s.Fleet.Profile} {
			if *p != "" && !filepath.IsAbs(*p) && (p != &s.Fleet.Profile || filepath.Ext(*p) == ".json") {
				*p = filepath.Join(filepath.Dir(file), *p)
			}
		}
		if change != nil {
			change(s)
		}
		return s.Validate()
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// problems are the complaints about a scenario.
type problems []error

func (p *problems) add(ok bool, path, format string, args ...any) {
	if !ok {
		*p = append(*p, &config.FieldError{Path: path, Msg: fmt.Sprintf(format, args...)})
	}
}

func (p *problems) fail(path string, err error) {
	if err != nil {
		p.add(false, path, "%v", err)
	}
}

// Validate fills in what follows from other keys and returns all complaints, as config.FieldErrors.
func (s *Scenario) Validate() error {
	var p problems
	if s.Deadline.Duration == 0 {
		s.Deadline = s.SLO
	}
	if s.Route.Delay.Duration == 0 {
		s.Route.Delay = s.Network.Latency
	}
	nodes := s.Fleet.Nodes + s.Fleet.Spare
	if s.Route.Users == 0 {
		s.Route.Users = max(nodes, 0) << 16
	}
	if s.Route.Items == 0 {
		s.Route.Items = max(nodes, 0) << 16
	}
	p.add(s.SLO.Duration > 0, "slo", "%v: want more than 0", s.SLO)
	p.add(s.Queue >= 1 && s.Queue <= 1<<20, "queue", "%d: want 1 to 1048576", s.Queue)
	p.add(s.Batch == 0 || s.Batch == 1, "batch", "%d: want 1 for no batching, or 0", s.Batch)
	p.add(s.Requests >= 0, "requests", "%d: want at least 0", s.Requests)
	given := s.Trace.File != "" || s.Users.Count != 0 || s.Users.File != "" || s.Items.Count != 0
	if !given {
		p = append(p, errors.New("nothing says which requests come: give --trace FILE, or describe requests, load, users "+
			"and items (grebe sim --example)"))
	}
	p.add(!given || s.Requests > 0 || s.Duration.Duration > 0 || s.Trace.File != "" && !s.Trace.Repeat, "requests",
		"neither requests nor a duration: the run would not end")
	p.add(s.Duration.Duration == 0 || s.Warmup.Duration < s.Duration.Duration, "warmup", "%v is as long as the run",
		s.Warmup)
	s.checkPrompt(&p)
	if given {
		s.checkLoad(&p)
	}
	s.checkFleet(&p)
	s.checkPlaces(&p)
	s.checkHolders(&p)
	for i, e := range s.Events {
		path := fmt.Sprintf("events[%d]", i)
		p.add(slices.Contains([]string{"fail", "start", "slow", "restart", "drain"}, e.Do), path+".do",
			"%q: want fail, start, slow, restart or drain", e.Do)
		known := e.Node >= 0 && e.Node < s.Fleet.Nodes+s.Fleet.Spare
		p.add(known || e.Node == -1 && e.Do == "restart", path+".node", "there is no node %d", e.Node)
		p.add(e.Do != "slow" || e.Factor >= 1, path+".factor", "%v: want at least 1", e.Factor)
	}
	p.add(s.Sweep.Within > 0 && s.Sweep.Within <= 1, "sweep.within", "%v: want a share above 0", s.Sweep.Within)
	p.add(s.Sweep.Digits > 0 && s.Sweep.Digits < 1, "sweep.digits", "%v: want a share above 0", s.Sweep.Digits)
	for i, r := range s.Sweep.Rates {
		p.add(r > 0, fmt.Sprintf("sweep.rates[%d]", i), "%v: want more than 0", r)
	}
	return errors.Join(p...)
}

func (s *Scenario) checkPrompt(p *problems) {
	var err error
	q := &s.Prompt
	p.add(q.Preamble >= 0 && q.LeadIn >= 0 && q.Question >= 0, "prompt", "a number of tokens is negative")
	b := &q.Blend
	p.add(min(b.History, b.Items, b.Whole) >= 0 && max(b.History, b.Items, b.Whole) <= 1, "prompt.blend",
		"%+v: want shares of 0 to 1", *b)
	s.policy, err = schedule.ParsePolicy(q.Policy)
	p.fail("prompt.policy", err)
	s.orders = 0
	for i, name := range q.Orders {
		switch name {
		case "user":
			s.orders |= schedule.Of(plan.UserFirst)
		case "item":
			s.orders |= schedule.Of(plan.ItemFirst)
		default:
			p.add(false, fmt.Sprintf("prompt.orders[%d]", i), "%q: want user or item", name)
		}
	}
}

func (s *Scenario) checkLoad(p *problems) {
	l := &s.Load
	p.add(slices.Contains([]string{"poisson", "uniform"}, l.Process), "load.process", "%q: want poisson or uniform",
		l.Process)
	p.add(l.Clients >= 0, "load.clients", "%d: want at least 0", l.Clients)
	if s.Trace.File != "" {
		p.add(s.Trace.Speedup > 0, "trace.speedup", "%v: want more than 0", s.Trace.Speedup)
		return
	}
	p.add(l.Rate > 0 && !math.IsInf(l.Rate, 1) || l.Clients > 0, "load.rate", "%v: want requests per second above 0",
		l.Rate)
	p.add(l.Trend > 0 && (l.Trend == 1 || s.Duration.Duration > 0), "load.trend", "%v: want more than 0, and a duration",
		l.Trend)
	b := &l.Burst
	p.add(b.Factor > 0 && b.Length.Duration <= b.Every.Duration, "load.burst",
		"want a factor above 0, and a length of at most every")
	u, it := &s.Users, &s.Items
	if u.File == "" {
		p.add(u.Count > 0 && u.Count <= math.MaxInt32, "users.count", "%d: want 1 to 2³¹-1", u.Count)
		p.lengths("users.tokens", &u.Tokens)
	}
	p.add(u.Zipf >= 0 && u.Growth >= 0, "users", "zipf %v and growth %v: want at least 0", u.Zipf, u.Growth)
	p.add(it.Count > 0 && it.Count <= math.MaxInt32, "items.count", "%d: want 1 to 2³¹-1", it.Count)
	p.add(it.Candidates > 0 && it.Candidates <= it.Count, "items.candidates", "%d: want 1 to the number of items",
		it.Candidates)
	p.add(it.Zipf >= 0, "items.zipf", "%v: want at least 0", it.Zipf)
	p.lengths("items.tokens", &it.Tokens)
	switch it.Generator {
	case "zipf":
	case "communities":
		p.add(it.Communities > 0 && it.Communities <= it.Count/max(it.Candidates, 1), "items.communities",
			"%d: want 1 or more, each with more items than a request has candidates", it.Communities)
		p.add(it.Share >= 0 && it.Share <= 1, "items.share", "%v: want 0 to 1", it.Share)
	default:
		p.add(false, "items.generator", "%q: want zipf or communities", it.Generator)
	}
	if it.Flat == 0 {
		it.Flat = it.Candidates
	}
	p.add(it.Flat > 0, "items.flat", "%d: want at least 1", it.Flat)
}

func (p *problems) lengths(path string, l *Lengths) {
	p.add(l.Min >= 1 && float64(l.Min) <= l.Mean && l.Mean <= float64(l.Max) && l.Max <= 1<<20 && l.Sigma >= 0, path,
		"%+v: want 1 ≤ min ≤ mean ≤ max ≤ 1048576 and a sigma of at least 0", *l)
}

// maxNodes bounds a fleet.
const maxNodes = 1024

func (s *Scenario) checkFleet(p *problems) {
	f, c := &s.Fleet, &s.Cache
	p.add(f.Nodes >= 1 && f.Spare >= 0 && f.Nodes+f.Spare <= maxNodes, "fleet.nodes", "%d and %d spare ones: want 1 to %d",
		f.Nodes, f.Spare, maxNodes)
	p.add(f.Workers >= 1 && f.Workers <= 64, "fleet.workers", "%d: want 1 to 64", f.Workers)
	p.add(f.Profile != "" || len(f.Profiles) > 0, "fleet.profile", "want a .json file or one of %s",
		strings.Join(Profiles(), ", "))
	p.add(slices.Contains(evict.Names(), c.Policy), "cache.policy", "%q: want one of %v", c.Policy, evict.Names())
	p.add(c.Users > 0 && c.Items > 0 && c.Slots >= 0 && c.Slots <= maxSlots, "cache",
		"want tables of users and items, and at most %d slots", maxSlots)
	e := &s.Embeddings
	p.add(e.Share > 0 && e.Share < 1, "embeddings.share", "%v: want a share between 0 and 1", e.Share)
	p.add(e.Controller == "climb" || e.Controller == "static", "embeddings.controller", "%q: want climb or static",
		e.Controller)
	names := f.Profiles
	if len(names) == 0 {
		names = []string{f.Profile}
	}
	s.profiles = nil
	if len(*p) > 0 {
		return
	}
	loaded := map[string]*Profile{}
	for i := range f.Nodes + f.Spare {
		name := names[i%len(names)]
		if loaded[name] == nil {
			pr, err := LoadProfile(name)
			if err != nil {
				p.fail("fleet.profile", err)
				return
			}
			if f.Device > 0 {
				pr.DeviceBytes = int64(f.Device)
			}
			if f.Host > 0 {
				pr.HostBytes = int64(f.Host)
			}
			loaded[name] = pr
			p.add(c.Page >= 0 && (c.Page == 0 || pr.KVTokenBytes%int64(c.Page) == 0), "cache.page",
				"%d bytes: the KV of a token has %d", c.Page, pr.KVTokenBytes)
			p.add(int64(c.ItemMemory) == 0 || int64(c.ItemMemory) <= pr.HostBytes, "cache.item_memory",
				"%d bytes: host memory has %d", c.ItemMemory, pr.HostBytes)
			p.add(int64(c.ItemMemory) < pr.HostBytes || pr.DeviceBytes > 0, "cache.item_memory", "leaves no memory to users")
		}
		s.profiles = append(s.profiles, loaded[name])
	}
}

func (s *Scenario) checkPlaces(p *problems) {
	n, m, r := &s.Network, &s.Placement, &s.Route
	p.add(slices.Contains(placements, m.Kind), "placement.kind", "%q: want one of %v", m.Kind, placements)
	p.add(m.Kind == "none" || m.Kind == "replicate" || n.Bandwidth > 0 || s.Fleet.Nodes == 1, "network.bandwidth",
		"0: items of other nodes can only be had over a network")
	p.add(m.Fill >= 0 && m.Fill <= 1 && m.Alpha >= 0 && m.Hot >= 0 &&
		m.Hot <= 1, "placement", "fill, hot and alpha are shares")
	if m.Refresh.Duration == 0 {
		m.Refresh = Duration{time.Minute}
		if m.Kind == "similar" {
			m.Refresh = Duration{time.Hour}
		}
	}
	p.add(m.Sample >= 0, "placement.sample", "%d: want at least 0", m.Sample)
	var err error
	s.router, err = route.ParsePolicy(r.Policy)
	p.fail("route.policy", err)
	p.add(r.Routers >= 1 && r.Routers <= 64, "route.routers", "%d: want 1 to 64", r.Routers)
	p.add(r.Users > 0 && r.Items > 0 && r.Alpha >= 0 &&
		r.Beta >= 0, "route", "users, items, alpha and beta: want at least 0")
	p.add(r.Heartbeat.Duration >= time.Millisecond, "route.heartbeat", "%v: want at least 1ms", r.Heartbeat)
	p.add(r.Ring >= 1 && r.Ring <= 1<<24, "route.ring", "%d: want 1 to 16777216", r.Ring)
}

// placements are the kinds of maps.
var placements = []string{"none", "hash", "replicate", "hot-cold", "similar"}
