package sim

import (
	"cmp"
	"fmt"
	"slices"

	"grebe/placement"
)

// Past is a Stream that knows requests from before the run. The first map and the items to preload come from them.
type Past interface {
	// Past calls visit with requests until it returns false or there are no more. The request is valid during the call.
	Past(visit func(r *Request) bool)
}

// past is what is known of earlier requests.
type past struct {
	requests    int
	uses        []float64 // by item
	user, items float64   // mean tokens of a user, and of an item
	candidates  float64   // mean number
	sketch      *placement.Sketch
}

// sketchSlots is the number of neighbours that are counted per item.
const sketchSlots = 16

// recall reads the past, at most so many requests.
func (f *fleet) recall(most int) error {
	f.past.uses = make([]float64, f.source.Items())
	if f.scenario.Placement.Kind == "similar" {
		var err error
		if f.past.sketch, err = placement.NewSketch(f.source.Items(), sketchSlots, f.scenario.Seed); err != nil {
			return err
		}
	}
	known, ok := f.source.(Past)
	if !ok {
		return nil
	}
	known.Past(func(r *Request) bool {
		f.past.add(r)
		if f.past.sketch != nil {
			f.past.sketch.Add(r.Items)
		}
		return f.past.requests < most
	})
	return nil
}

// add counts a request.
func (p *past) add(r *Request) {
	p.requests++
	n := float64(p.requests)
	p.user += (float64(r.UserTokens) - p.user) / n
	p.candidates += (float64(len(r.Items)) - p.candidates) / n
	sum := 0.0
	for i, item := range r.Items {
		p.uses[item]++
		sum += float64(r.ItemTokens[i])
	}
	if len(r.Items) > 0 {
		p.items += (sum/float64(len(r.Items)) - p.items) / n
	}
}

// sketchEvery is how many requests of the run come to one that the graph is made of.
const sketchEvery = 16

// learn counts a request of the run for the next map.
func (f *fleet) learn(r *Request) {
	f.past.add(r)
	if f.past.sketch != nil && f.sent%sketchEvery == 0 {
		f.past.sketch.Add(r.Items)
	}
}

// place makes the first map and loads items.
func (f *fleet) place() error {
	s := f.scenario
	if s.Placement.Kind == "none" {
		return nil
	}
	if err := f.recall(s.Placement.Sample); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if f.places = f.options.Map; f.places == nil {
		m, err := f.newMap(1)
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		f.places = m
	}
	if s.Placement.Preload {
		order := f.past.byHeat()
		for _, n := range f.nodes {
			if n.up {
				n.preload(order)
			}
		}
	}
	return nil
}

// members returns the nodes as the map sees them: with weights by their memory for items. Nodes that are not part of
// the fleet own nothing.
func (f *fleet) members() []placement.Member {
	all, memory := placement.Members(len(f.nodes)), make([]int64, len(f.nodes))
	for i, n := range f.nodes {
		memory[i] = cmp.Or(int64(f.scenario.Cache.ItemMemory), n.profile.DeviceBytes+n.profile.HostBytes)
	}
	placement.Weigh(all, memory)
	for i, n := range f.nodes {
		if !n.member {
			all[i].Weight = 0
		}
	}
	return all
}

func (f *fleet) newMap(epoch uint64) (*placement.Map, error) {
	c := placement.Config{Epoch: epoch, Members: f.members(), Items: f.source.Items()}
	p := &f.scenario.Placement
	switch {
	case p.Kind == "replicate":
		return placement.Replicate(c)
	case p.Kind == "hot-cold" && f.past.requests > 0:
		return placement.HotCold(c, f.past.uses, f.remoteShare())
	case p.Kind == "similar" && f.past.requests > 0:
		graph, err := f.past.sketch.Graph()
		if err != nil {
			return nil, err
		}
		hot := p.Hot
		if hot == 0 {
			hot = placement.HotShare
		}
		return placement.Similar(placement.SimilarConfig{Config: c, Graph: graph, Uses: f.past.uses, Hot: hot})
	}
	return placement.Hash(c)
}

// remoteShare returns the share of the uses of items that may come from other nodes (BAT-4, step 1).
func (f *fleet) remoteShare() float64 {
	p, known := &f.scenario.Placement, &f.past
	if p.Hot > 0 {
		return 1 - known.hottest(p.Hot)
	}
	profile := f.scenario.profiles[0]
	user, before := int(known.user), int(known.candidates*known.items)
	t := placement.Traffic{
		Alpha: p.Alpha, Prefill: profile.Prefill.Predict(user, causal(0, user, before), 1) / 1e3,
		Bandwidth:  f.net.rate / float64(profile.KVTokenBytes),
		Candidates: max(int(known.candidates+.5), 1), ItemTokens: max(known.items, 1), Nodes: f.scenario.Fleet.Nodes,
	}
	if p.Printed {
		return t.Printed()
	}
	return t.Corrected()
}

// byHeat returns all items, those with the most uses first.
func (p *past) byHeat() []int32 {
	var hot, cold []int32
	for i, uses := range p.uses {
		if uses > 0 {
			hot = append(hot, int32(i))
		} else {
			cold = append(cold, int32(i))
		}
	}
	slices.SortStableFunc(hot, func(a, b int32) int { return cmp.Compare(p.uses[b], p.uses[a]) })
	return append(hot, cold...)
}

// hottest returns the share of the uses that a share of the items has.
func (p *past) hottest(share float64) float64 {
	order := p.byHeat()
	sum, all := 0.0, 0.0
	for i, item := range order {
		if all += p.uses[item]; float64(i) < share*float64(len(order)) {
			sum += p.uses[item]
		}
	}
	return sum / max(all, 1)
}

// usesFade is the weight of uses from before the last map.
const usesFade = .5

// refresh makes the map again from the requests since.
func (f *fleet) refresh() {
	var m *placement.Map
	var err error
	changed := true
	switch f.scenario.Placement.Kind {
	case "hot-cold":
		m, changed, err = f.places.Refresh(f.past.uses, f.remoteShare())
	case "similar":
		m, err = f.newMap(f.places.Epoch + 1)
		f.past.sketch.Age(usesFade)
	}
	if err != nil {
		panic(err) // the first map was made of the same
	}
	for i := range f.past.uses {
		f.past.uses[i] *= usesFade
	}
	if changed {
		f.publish(m)
	}
}

// publish gives all a new map, and lets nodes bring the items that are theirs now.
func (f *fleet) publish(m *placement.Map) {
	old := f.places
	f.places = m
	f.result.maps++
	for _, r := range f.routers {
		r.view.SetMap(m)
	}
	if !f.peers {
		return
	}
	placement.EachMove(old, m, func(item int32, from, to int) bool {
		if from >= 0 && from != to {
			f.nodes[to].later(task{item, int32(from), int32(to)})
		}
		return true
	})
}

// joined changes the map because a node joined or left the fleet for good.
func (f *fleet) joined() {
	if f.places == nil {
		return
	}
	if m, err := f.places.Change(f.members()); err == nil { // an error: there is no member left
		f.publish(m)
	}
}

// preload puts the items that the map gives a node into its memory, the hottest last, as many as fit.
func (n *node) preload(order []int32) {
	var mine []int32
	var total int64
	slots := 0
	for i := range n.items.mem {
		total += n.items.mem[i].total
		slots += n.items.books.Places(i)
	}
	for _, item := range order {
		owner, _, everywhere := n.f.places.Place(item)
		if !everywhere && owner != int(n.id) {
			continue
		}
		bytes := int64(n.f.lengths.of(item)) * n.items.token
		if total -= bytes; total < 0 || len(mine) == slots {
			break
		}
		mine = append(mine, item)
	}
	for _, item := range slices.Backward(mine) {
		n.items.bring(itemKey(item), int(n.f.lengths.of(item)), item)
	}
}

// refill has a node that is empty bring its items from others in the background.
func (n *node) refill() {
	f := n.f
	if !f.peers {
		return
	}
	for _, from := range f.nodes {
		if from == n || !from.up {
			continue
		}
		from.items.books.All(func(h *held) {
			item := h.Value.item
			if item < 0 {
				return
			}
			if owner, _, everywhere := f.places.Place(item); everywhere || owner == int(n.id) {
				n.missing = append(n.missing, task{item, from.id, n.id})
			}
		})
	}
	slices.SortFunc(n.missing, func(a, b task) int {
		return cmp.Or(cmp.Compare(a.item, b.item),
			cmp.Compare(a.from, b.from))
	})
	for i, t := range n.missing {
		if i == 0 || t.item != n.missing[i-1].item {
			n.later(t)
		}
	}
	n.missing = nil
}
