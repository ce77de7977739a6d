package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// HotShare is the share of the items that RCL-3 places everywhere.
const HotShare = 0.001

// SimilarConfig says what Similar cuts, and how.
type SimilarConfig struct {
	Config
	Graph *Graph // of the items that are requested together; it has Config.Items items
	// Uses says how often each item is requested. The hottest items are everywhere.
	Uses []float64
	Hot  float64 // share of the items that are everywhere; HotShare in the paper
	// Previous, unless nil, is the map in use, from which the cut starts, so that fewer items move. Members have the
	// numbers that they have there.
	Previous *Map
	// Passes is how often items are streamed; 0: 10.
	Passes int
	// HeldOut are requests that Graph has not seen. If there are any, items are moved once more between nodes, where
	// that puts more items of these requests on the request's best node.
	HeldOut [][]int32
	// Progress, unless nil, is called now and then. Its error ends the work and is returned.
	Progress func(done, total int64) error
}

// Validate returns an error for the first invalid field.
func (c *SimilarConfig) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	switch {
	case c.Graph == nil || c.Graph.Items() != c.Items:
		return fmt.Errorf("placement: the graph does not have the map's %d items", c.Items)
	case len(c.Uses) != c.Items:
		return fmt.Errorf("placement: uses of %d items, want %d", len(c.Uses), c.Items)
	case !(c.Hot >= 0 && c.Hot <= 1):
		return fmt.Errorf("placement: hot share %v, want 0 to 1", c.Hot)
	case c.Passes < 0 || c.Passes > 1000:
		return fmt.Errorf("placement: %d passes, want 1 to 1000, or 0 for the default", c.Passes)
	}
	return checkUses(c.Uses)
}

// Similar places items that are requested together on the same node (RCL-3). The hottest items are everywhere. The
// rest is cut into a part per node, at most 3 % larger than the node's share, and each part into micro-parts of
// similar items. When members change, the micro-parts move that lose the least.
func Similar(c SimilarConfig) (*Map, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m, err := newMap(c.Config)
	if err != nil {
		return nil, err
	}
	group := make([]uint16, c.Items) // all in one, but the hot ones
	hot := hottest(c.Uses, int(math.Round(c.Hot*float64(c.Items))))
	for _, i := range hot {
		group[i] = nowhere
	}
	p := &partition{SimilarConfig: &c, m: m, cold: c.Items - len(hot), passes: c.Passes}
	if p.passes == 0 {
		p.passes = 10
	}
	if err := p.nodes(group); err != nil {
		return nil, err
	}
	if err := p.split(); err != nil {
		return nil, err
	}
	m.ties = tie(c.Graph, m)
	return m, nil
}

// partition is a run of Similar.
type partition struct {
	*SimilarConfig
	m       *Map
	order   []int32 // of streaming
	cold    int     // items that are not everywhere
	passes  int
	done    int64
	members []int    // live, by part
	from    []int    // live member → its first micro-part, and one more
	node    []uint16 // item → index in members
}

const (
	blocksPerPart = 10 // blocks are at most a tenth of a micro-part
	clusterRounds = 2
	blockPasses   = 2
	splitPasses   = 4
)

func (p *partition) tick(items int) error {
	if p.Progress == nil {
		return nil
	}
	p.done += int64(items)
	passes := p.passes + splitPasses
	if p.Previous == nil {
		passes += clusterRounds + blockPasses
	}
	return p.Progress(p.done, int64(passes)*int64(p.Items))
}

// nodes cuts the items into a part per node.
func (p *partition) nodes(group []uint16) error {
	var share []float64
	p.from = []int{0}
	for i, n := range quotas(p.m.members, len(p.m.parts)) {
		if n == 0 {
			continue
		}
		p.members = append(p.members, i)
		p.from = append(p.from, p.from[len(p.from)-1]+n)
		share = append(share, float64(p.cold)*float64(n)/float64(len(p.m.parts)))
	}
	p.order = heaviest(p.Graph)
	c := newCutter(p.Graph, p.order, group, []int{0, len(share)}, share)
	if err := p.start(c); err != nil {
		return err
	}
	if len(p.HeldOut) > 0 {
		newJudge(c, p.HeldOut).improve()
	}
	p.node = c.of
	return nil
}

// start places the items: from where the map in use has them, or by blocks and then one by one.
func (p *partition) start(c *cutter) error {
	if p.Previous != nil {
		p.follow(c)
		return c.run(p.passes, 1, p.tick)
	}
	b, err := c.cluster(max(p.cold/len(p.m.parts)/blocksPerPart, 1), clusterRounds, p.tick)
	if err != nil {
		return err
	}
	if err := c.runBlocks(b, blockPasses, dear, p.tick); err != nil {
		return err
	}
	return c.run(p.passes, dear, p.tick)
}

// follow puts items where the map in use has them.
func (p *partition) follow(c *cutter) {
	part := make([]int, max(len(p.m.members), p.Previous.Nodes()))
	for i := range part {
		part[i] = -1
	}
	for k, i := range p.members {
		part[i] = k
	}
	for i := range c.of {
		if owner, _, all := p.Previous.Place(int32(i)); c.group[i] != nowhere && !all && part[owner] >= 0 {
			c.put(i, part[owner])
		}
	}
}

// split cuts each node's items into its micro-parts.
func (p *partition) split() error {
	size := make([]float64, len(p.members))
	for _, n := range p.node {
		if n != nowhere {
			size[n]++
		}
	}
	share := make([]float64, len(p.m.parts))
	for n, member := range p.members {
		for q := p.from[n]; q < p.from[n+1]; q++ {
			share[q] = size[n] / float64(p.from[n+1]-p.from[n])
			p.m.parts[q].owner = uint16(member)
		}
	}
	p.m.seconds()
	c := newCutter(p.Graph, p.order, p.node, p.from, share)
	if err := c.run(splitPasses, dear, p.tick); err != nil {
		return err
	}
	p.m.table = c.of // nowhere is everywhere
	return nil
}

// hottest returns the n items with the most uses, by falling uses and rising number. Items without uses are not hot.
func hottest(uses []float64, n int) []int32 {
	order := byUses(uses)
	order = order[:min(n, len(order))]
	for len(order) > 0 && uses[order[len(order)-1]] == 0 {
		order = order[:len(order)-1]
	}
	return order
}

// byUses returns all items by falling uses and rising number.
func byUses(uses []float64) []int32 {
	order := make([]int32, len(uses))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Or(cmp.Compare(uses[b], uses[a]), cmp.Compare(a, b)) })
	return order
}

func checkUses(uses []float64) error {
	for i, u := range uses {
		if !(u >= 0 && u <= math.MaxFloat64) {
			return fmt.Errorf("placement: item %d has %v uses", i, u)
		}
	}
	return nil
}

// quotas divides a number of micro-parts among members by weight, remainders to the largest.
func quotas(members []Member, parts int) []int {
	var sum float64
	for _, x := range members {
		sum += x.Weight
	}
	out := make([]int, len(members))
	rest := make([]float64, len(members))
	order := make([]int, len(members))
	left := parts
	for i, x := range members {
		exact := float64(parts) * (x.Weight / sum)
		out[i] = int(exact)
		rest[i] = exact - float64(out[i])
		order[i] = i
		left -= out[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for _, i := range order {
		if left > 0 && members[i].Weight > 0 {
			out[i]++
			left--
		}
	}
	return out
}
