package simpaper

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"grebe/bench/report"
	"grebe/placement"
	"grebe/sim"
)

// memory returns the bytes of a node for items alone, 0 if users and items share memory: what the fullest node's part
// of the map needs, with 3 % to spare.
func (r *runner) memory(t *Trial, s *sim.Scenario, m *placement.Map, source sim.Stream) (int64, error) {
	how := r.Items
	if t.Items != "" {
		how = t.Items
	}
	if how != "fit" {
		return 0, nil
	}
	p, err := sim.LoadProfile(s.Fleet.Profile)
	if err != nil {
		return 0, err
	}
	if m == nil {
		return 0, fmt.Errorf("items fit no placement %q", s.Placement.Kind)
	}
	need := fullest(m, source) * p.KVTokenBytes
	need += need * 3 / 100
	if r.ItemsAtMost != "" {
		var most sim.Bytes
		if err := most.UnmarshalText([]byte(r.ItemsAtMost)); err != nil {
			return 0, err
		}
		need = min(need, int64(most))
	}
	return need, nil
}

// drawn is how many requests the uses of items are counted in.
const drawn = 20_000

// learned is how many requests a cut by similarity is made from.
const learned = 500_000

// firstMap is the map that a scenario begins with; nil: it has none. Uses of items are counted in requests of the
// stream.
func (r *runner) firstMap(t *Trial, s *sim.Scenario) (*placement.Map, error) {
	if s.Placement.Kind == "none" {
		return nil, nil
	}
	if s.Placement.Kind == "similar" {
		return r.cut(t, s.Fleet.Nodes, s.Seed, learned)
	}
	source, err := r.stream(t).source(1, s.Seed) // with another seed, other items were hot
	if err != nil {
		return nil, err
	}
	p, err := sim.LoadProfile(s.Fleet.Profile)
	if err != nil {
		return nil, err
	}
	c := placement.Config{Epoch: 1, Members: placement.Members(s.Fleet.Nodes), Items: source.Items()}
	switch s.Placement.Kind {
	case "replicate":
		return placement.Replicate(c)
	case "hash":
		return placement.Hash(c)
	}
	uses := make([]float64, c.Items)
	var req sim.Request
	users, items, candidates := 0.0, 0.0, 0.0
	for range drawn {
		if !source.Next(&req) {
			return nil, errors.New("the stream ended")
		}
		users += float64(req.UserTokens) / drawn
		candidates += float64(len(req.Items)) / drawn
		for i, item := range req.Items {
			uses[item]++
			items += float64(req.ItemTokens[i]) / drawn
		}
	}
	rows := int(users)
	ms := p.Prefill.Predict(rows, rows*(rows/2+int(items)), 1)
	traffic := placement.Traffic{
		Alpha: s.Placement.Alpha, Prefill: ms / 1000, Bandwidth: float64(s.Network.Bandwidth) / 8 / float64(p.KVTokenBytes),
		Candidates: int(candidates), ItemTokens: items / candidates, Nodes: s.Fleet.Nodes,
	}
	remote := traffic.Corrected()
	if s.Placement.Printed {
		remote = traffic.Printed()
	}
	return placement.HotCold(c, uses, remote)
}

// fullest returns the tokens of items on the node that has most.
func fullest(m *placement.Map, source sim.Stream) int64 {
	tokens := make([]int64, m.Nodes())
	everywhere := int64(0)
	for item := range int32(source.Items()) {
		owner, _, all := m.Place(item)
		if n := int64(source.ItemTokens(item)); all {
			everywhere += n
		} else {
			tokens[owner] += n
		}
	}
	return everywhere + slices.Max(tokens)
}

// footprint cuts a catalog by similarity and returns the millions of tokens on the fullest node.
func (r *runner) footprint(t *Trial, seed uint64) (*Value, error) {
	s, err := r.scenario(t, seed)
	if err != nil {
		return nil, err
	}
	m, err := r.cut(t, s.Fleet.Nodes, seed, 4*drawn)
	if err != nil {
		return nil, err
	}
	source, err := r.stream(t).source(1, seed)
	if err != nil {
		return nil, err
	}
	return &Value{Throughput: float64(fullest(m, source)) / 1e6}, nil
}

// cut cuts a stream's catalog by similarity, from so many requests.
func (r *runner) cut(t *Trial, nodes int, seed uint64, requests int) (*placement.Map, error) {
	stream := r.stream(t)
	if r.past > 0 {
		seed = r.past
	}
	key := fmt.Sprint(*stream, nodes, seed)
	if m := r.cuts[key]; m != nil {
		return m, nil
	}
	source, err := stream.source(1, seed+before)
	if err != nil {
		return nil, err
	}
	sketch, err := placement.NewSketch(source.Items(), slots, seed)
	if err != nil {
		return nil, err
	}
	var req sim.Request
	for range requests {
		source.Next(&req)
		sketch.Add(req.Items)
	}
	m, err := similar(sketch, nodes, source.Items())
	if err == nil {
		r.cuts[key] = m
	}
	return m, err
}

// slots is the number of neighbours of an item that a sketch holds.
const slots = 16

// similar cuts the catalog as RCL-3 does.
func similar(s *placement.Sketch, nodes, items int) (*placement.Map, error) {
	g, err := s.Graph()
	if err != nil {
		return nil, err
	}
	return placement.Similar(placement.SimilarConfig{
		Config: placement.Config{Epoch: 1, Members: placement.Members(nodes), Items: items}, Graph: g, Uses: s.Uses(),
		Hot: placement.HotShare,
	})
}

// local returns the share of candidates on the best node of requests that the map was not made from.
func (r *runner) local(t *Trial, seed uint64) (*Value, error) {
	s, err := r.scenario(t, seed)
	if err != nil {
		return nil, err
	}
	h, err := readHistories(r.Beauty)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 77))
	order := rng.Perm(len(h.users))
	half := len(order) / 2
	sketch, err := placement.NewSketch(len(h.of), slots, seed)
	if err != nil {
		return nil, err
	}
	n := r.stream(t).Candidates
	for _, u := range order[:half] {
		sketch.Add(h.candidates(u, n, rng))
	}
	m, err := similar(sketch, s.Fleet.Nodes, len(h.of))
	if err != nil {
		return nil, err
	}
	var shares []float64
	sum := 0.0
	for _, u := range order[half:] {
		got := h.candidates(u, n, rng)
		if len(got) == 0 {
			continue
		}
		share := best(m, got)
		shares = append(shares, share)
		sum += share
	}
	return &Value{Mean: sum / float64(len(shares)), P50: report.Median(shares), P99: slices.Max(shares)}, nil
}

// best returns the largest share of items that a node has.
func best(m *placement.Map, items []int32) float64 {
	count := make([]int, m.Nodes())
	everywhere := 0
	for _, item := range items {
		if owner, _, all := m.Place(item); all {
			everywhere++
		} else {
			count[owner]++
		}
	}
	return float64(everywhere+slices.Max(count)) / float64(len(items))
}

// histories are those of Amazon Beauty: items of users, users of items.
type histories struct {
	users [][]int32
	of    [][]int32
}

func readHistories(file string) (*histories, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read Amazon Beauty: %w", err)
	}
	defer f.Close()
	h := &histories{}
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for line := 1; scan.Scan(); line++ {
		fields := strings.Fields(scan.Text())
		if len(fields) < 3 {
			return nil, fmt.Errorf("%s:%d: want a user and items", file, line)
		}
		var items []int32
		for _, text := range fields[1:] {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > 1<<24 {
				return nil, fmt.Errorf("%s:%d: %q is no item", file, line, text)
			}
			for len(h.of) < n {
				h.of = append(h.of, nil)
			}
			h.of[n-1] = append(h.of[n-1], int32(len(h.users)))
			items = append(items, int32(n-1))
		}
		h.users = append(h.users, items)
	}
	return h, scan.Err()
}

// Random walks of the candidates: how many of the user's last items they begin at, how likely one begins again after a
// step, and how many steps are made per candidate at most.
const (
	lastItems = 3
	restart   = 0.5
	mostSteps = 200
)

// candidates draws n different items by random walks from a user's last items, item to user to item. The user's own
// history is no way: a walk does not pass through it.
func (h *histories) candidates(user, n int, rng *rand.Rand) []int32 {
	past := h.users[user]
	past = past[:len(past)-1] // the last item is the test's
	from := past[max(0, len(past)-lastItems):]
	if len(from) == 0 {
		return nil
	}
	var out []int32
	at := from[rng.IntN(len(from))]
	for step := 0; len(out) < n && step < mostSteps*n; step++ {
		other := h.of[at][rng.IntN(len(h.of[at]))]
		if int(other) == user && len(h.of[at]) == 1 || rng.Float64() < restart && step > 0 {
			at = from[rng.IntN(len(from))]
			continue
		}
		if int(other) == user {
			continue
		}
		next := h.users[other]
		at = next[rng.IntN(len(next))]
		if !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}
