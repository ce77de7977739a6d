package placement

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

type edge struct {
	a, b int32
	w    float32
}

// communities returns random edges of items, most of them within groups of neighbouring items. Weights are integers.
func communities(r *rand.Rand, items, groups, edges int) []edge {
	out := make([]edge, 0, edges)
	size := max(items/groups, 1)
	for range edges {
		a := int32(r.IntN(items))
		b := int32(r.IntN(items))
		if r.IntN(10) > 0 {
			b = min(a/int32(size)*int32(size)+int32(r.IntN(size)), int32(items-1))
		}
		out = append(out, edge{a, b, float32(1 + r.IntN(3))})
	}
	return out
}

func graph(t testing.TB, items int, edges []edge) *Graph {
	t.Helper()
	g, err := NewGraph(items, func(visit func(a, b int32, w float32)) {
		for _, e := range edges {
			visit(e.a, e.b, e.w)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGraphAgainstMatrix(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		n := 1 + r.IntN(30)
		edges := communities(r, n, 3, r.IntN(100))
		g := graph(t, n, edges)
		want, got := make([]float32, n*n), make([]float32, n*n)
		for _, e := range edges {
			if e.a != e.b {
				want[int(e.a)*n+int(e.b)] += e.w
				want[int(e.b)*n+int(e.a)] += e.w
			}
		}
		for i := range n {
			g.Near(int32(i), func(o int32, w float32) { got[i*n+int(o)] += w })
		}
		if !slices.Equal(got, want) {
			t.Fatalf("neighbours of %v are wrong", edges)
		}
	}
	for _, e := range []edge{{0, 5, 1}, {-1, 0, 1}, {0, 1, 0}, {0, 1, float32(math.NaN())}} {
		if _, err := NewGraph(5, func(visit func(a, b int32, w float32)) { visit(e.a, e.b, e.w) }); err == nil {
			t.Errorf("edge %+v was accepted", e)
		}
	}
}

// plainFennel is a pass with everything computed anew for every item.
func plainFennel(g *Graph, order []int32, of []int, parts int, share, scale float64) {
	limit := int(max(math.Ceil(share), math.Floor(share*1.03)))
	for _, i := range order {
		of[i] = -1
		best, most := -1, 0.0
		for p := range parts {
			load, near := 0, 0.0
			for _, q := range of {
				if q == p {
					load++
				}
			}
			g.Near(i, func(o int32, w float32) {
				if of[o] == p {
					near += float64(w)
				}
			})
			if gain := near - scale*math.Sqrt(float64(load)/share); load < limit && (best < 0 || gain > most) {
				best, most = p, gain
			}
		}
		of[i] = best
	}
}

func TestFennelAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		n, parts := 20+r.IntN(100), 1+r.IntN(6)
		g := graph(t, n, communities(r, n, 4, 4*n))
		share := make([]float64, parts)
		for p := range share {
			share[p] = float64(n) / float64(parts)
		}
		c := newCutter(g, heaviest(g), make([]uint16, n), []int{0, parts}, share)
		if err := c.run(3, dear, func(int) error { return nil }); err != nil {
			t.Fatal(err)
		}
		want := make([]int, n)
		for i := range want {
			want[i] = -1
		}
		for _, price := range []float64{4, 2.5, 1} {
			plainFennel(g, heaviest(g), want, parts, share[0], 1.5*c.mean*price)
		}
		for i, p := range c.of {
			if int(p) != want[i] {
				t.Fatalf("item %d is in part %d, plainly in %d", i, p, want[i])
			}
		}
	}
}

// Blocks have all items once, of one group each, and are those of label propagation with maps.
func TestClusterAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 20 {
		n, size := 20+r.IntN(200), 1+r.IntN(8)
		g := graph(t, n, communities(r, n, 6, 4*n))
		group := make([]uint16, n)
		for i := range group {
			if group[i] = uint16(r.IntN(2)); r.IntN(10) == 0 {
				group[i] = nowhere
			}
		}
		c := newCutter(g, heaviest(g), group, []int{0, 1, 2}, []float64{1, 1})
		got, err := c.cluster(size, 2, func(int) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		block, count := make([]int32, n), make([]int, n)
		for i := range block {
			block[i], count[i] = int32(i), 1
		}
		for range 2 {
			for _, i := range c.order {
				if group[i] == nowhere {
					continue
				}
				sum := map[int32]float32{}
				var met []int32
				g.Near(i, func(o int32, w float32) {
					if group[o] == group[i] {
						if sum[block[o]] == 0 {
							met = append(met, block[o])
						}
						sum[block[o]] += w
					}
				})
				best := block[i]
				for _, b := range met {
					if sum[b] > sum[best] && count[b] < size {
						best = b
					}
				}
				count[block[i]]--
				count[best]++
				block[i] = best
			}
		}
		seen, at := make([]bool, n), int32(0)
		for _, end := range got.ends {
			for _, i := range got.items[at:end] {
				if seen[i] || group[i] == nowhere || block[i] != block[got.items[at]] {
					t.Fatalf("item %d, of block %d, is in a block with %d", i, block[i], got.items[at])
				}
				seen[i] = true
			}
			if int(end-at) != count[block[got.items[at]]] || end == at || int(end-at) > size {
				t.Fatalf("a block of %d items, at most %d", end-at, size)
			}
			at = end
		}
		for i := range seen {
			if seen[i] != (group[i] != nowhere) {
				t.Fatalf("item %d is in a block: %v", i, seen[i])
			}
		}
	}
}

// A block goes where plain counting sends it, and one for which there is no room to the emptiest part.
func TestPlaceAll(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 10))
	for range 200 {
		const n, parts = 60, 4
		g := graph(t, n, communities(r, n, 6, 4*n))
		share := []float64{n / parts, n / parts, n / parts, n / parts}
		c := newCutter(g, heaviest(g), make([]uint16, n), []int{0, parts}, share)
		for i := range n {
			if p := r.IntN(parts + 1); p < parts && c.load[p] < c.limit[p] {
				c.put(i, p)
			}
		}
		c.setPrices(0, 1, 2)
		items := []int32{}
		for _, i := range r.Perm(n)[:1+r.IntN(10)] {
			items = append(items, int32(i))
		}
		of, load := make([]int, n), make([]float64, parts)
		for i, p := range c.of {
			if of[i] = int(p); p == nowhere || slices.Contains(items, int32(i)) {
				of[i] = -1
				continue
			}
			load[p]++
		}
		best, most, emptiest := -1, 0.0, 0
		for p := range parts {
			near := 0.0
			for _, i := range items {
				g.Near(i, func(o int32, w float32) {
					if of[o] == p {
						near += float64(w)
					}
				})
			}
			k := float64(len(items))
			gain := near - k*c.scale*math.Sqrt((load[p]+k/2)/share[p])
			if load[p]+k <= c.limit[p] && (best < 0 || gain > most) {
				best, most = p, gain
			}
			if load[p] < load[emptiest] {
				emptiest = p
			}
		}
		if best < 0 {
			best = emptiest
		}
		c.placeAll(items)
		load[best] += float64(len(items))
		for _, i := range items {
			if int(c.of[i]) != best {
				t.Fatalf("item %d is in part %d, want %d", i, c.of[i], best)
			}
		}
		if !slices.Equal(c.load, load) {
			t.Fatalf("loads %v, want %v", c.load, load)
		}
	}
}

func similar(t testing.TB, c SimilarConfig) *Map {
	t.Helper()
	m, err := Similar(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// config returns a catalog with communities, and uses that fall with the item's number.
func config(t testing.TB, seed uint64, nodes, items int) SimilarConfig {
	r := rand.New(rand.NewPCG(seed, 1))
	c := SimilarConfig{Config: Config{Epoch: 3, Members: Members(nodes), Items: items},
		Graph: graph(t, items, communities(r, items, 5*nodes, 10*items)), Uses: make([]float64, items), Hot: HotShare}
	for i := range c.Uses {
		c.Uses[i] = 1 / float64(1+i)
	}
	return c
}

// RCL-3: the hottest 0.1 % are everywhere, nodes have their share of the rest to 3 %, micro-parts lie on one node and
// are about equal, and the same input gives the same bytes.
func TestSimilarIsBalanced(t *testing.T) {
	for seed := range uint64(6) {
		c := config(t, seed, 3+int(seed), 20_000)
		c.Members[1].Weight = 2.5
		c.Members[2].Weight = 0
		m := similar(t, c)
		if !slices.Equal(m.Encode(), similar(t, c).Encode()) {
			t.Fatal("the same input gave another map")
		}
		owned, sizes, hot := make([]float64, m.Nodes()), make([]float64, m.Parts()), 0
		for i := range int32(c.Items) {
			owner, second, all := m.Place(i)
			if all != (i < 20) {
				t.Fatalf("item %d everywhere: %v", i, all)
			}
			if owner == 2 || second == 2 || owner == second {
				t.Fatalf("item %d at %d and %d", i, owner, second)
			}
			if all {
				hot++
				continue
			}
			owned[owner]++
			sizes[m.Part(i)]++
		}
		weight := float64(m.Nodes()-2) + 2.5
		quota := quotas(c.Members, m.Parts())
		for i, n := range owned {
			want := c.Members[i].Weight / weight * float64(c.Items-hot)
			exact := float64(quota[i]) / float64(m.Parts()) * float64(c.Items-hot)
			if n > 1.03*exact+1 || math.Abs(exact-want) > float64(c.Items)/float64(m.Parts()) {
				t.Errorf("node %d owns %.0f items, want at most 3 %% more than %.0f", i, n, want)
			}
		}
		mean := float64(c.Items-hot) / float64(m.Parts())
		if most := slices.Max(sizes); most > 1.1*mean+1 {
			t.Errorf("a micro-part has %.0f items, the mean is %.1f", most, mean)
		}
		if cut, by := c.Graph.Cut(m), c.Graph.Cut(hash(t, c.Config)); cut > 0.5*by {
			t.Errorf("the cut is %.2f of the edges, by hash %.2f", cut, by)
		}
	}
}

// More micro-parts than items, no edges, no items: every item still has a node.
func TestSimilarOfLittle(t *testing.T) {
	for _, items := range []int{0, 1, 7, 100} {
		c := SimilarConfig{Config: Config{Members: Members(4), Items: items}, Graph: graph(t, items, nil),
			Uses: make([]float64, items), Hot: 1}
		m := similar(t, c)
		owned := make([]int, 4)
		for i := range int32(items) {
			owner, _, all := m.Place(i)
			if all {
				t.Fatal("an item without uses is hot")
			}
			owned[owner]++
		}
		if slices.Max(owned)-slices.Min(owned) > 1+items/20 {
			t.Errorf("%d items: %v per node", items, owned)
		}
		if _, err := Decode(m.Encode()); err != nil {
			t.Error(err)
		}
	}
}

func TestSimilarStops(t *testing.T) {
	c := config(t, 1, 4, 70_000)
	stop := errors.New("stop")
	var last, total int64
	c.Progress = func(done, all int64) error {
		if done < last || done > all {
			t.Errorf("%d of %d after %d", done, all, last)
		}
		last, total = done, all
		return nil
	}
	similar(t, c)
	if last != total || total == 0 {
		t.Errorf("ended at %d of %d", last, total)
	}
	c.Progress = func(done, _ int64) error {
		if done > total/2 {
			return stop
		}
		return nil
	}
	if _, err := Similar(c); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

// A cut that starts from the map in use moves fewer items than one from nothing, and cuts as little. Nodes may join and
// leave at the same time, and limits hold.
func TestSimilarFromPrevious(t *testing.T) {
	c := config(t, 21, 8, 8000)
	old := similar(t, c)
	moved := func(m *Map) (n int) {
		EachMove(old, m, func(int32, int, int) bool { n++; return true })
		return n
	}
	other := config(t, 22, 8, 8000) // other requests of the same communities
	cold := similar(t, other)
	other.Previous = old
	warm := similar(t, other)
	if a, b := moved(warm), moved(cold); a > b/2 {
		t.Errorf("%d items moved, from nothing %d", a, b)
	}
	if a, b := other.Graph.Cut(warm), other.Graph.Cut(cold); a > 1.1*b {
		t.Errorf("the cut is %.3f, from nothing %.3f", a, b)
	}
	other.Members = append(Members(9), Member{"more", 1})
	other.Members[2].Weight = 0
	m := similar(t, other)
	owned := make([]float64, m.Nodes())
	for i := range int32(8000) {
		if owner, _, all := m.Place(i); !all {
			owned[owner]++
		}
	}
	if owned[2] != 0 || slices.Max(owned) > 1.03*8000/9+1 || owned[9] == 0 {
		t.Errorf("%v items per node", owned)
	}
}

// Ties are the weights between micro-parts, the 16 largest.
func TestTiesAgainstMatrix(t *testing.T) {
	c := config(t, 9, 3, 3000)
	m := similar(t, c)
	want := make([]map[uint16]float32, m.Parts())
	for i := range int32(c.Items) {
		p := m.table[i]
		if p == everywhere {
			continue
		}
		if want[p] == nil {
			want[p] = map[uint16]float32{}
		}
		c.Graph.Near(i, func(o int32, w float32) {
			if q := m.table[o]; q != everywhere && q != p {
				want[p][q] += w
			}
		})
	}
	for p, links := range m.ties {
		if len(links) != min(tiesPerPart, len(want[p])) {
			t.Fatalf("micro-part %d has %d ties of %d", p, len(links), len(want[p]))
		}
		least := float32(math.Inf(1))
		for _, l := range links {
			if want[p][l.part] != l.weight {
				t.Fatalf("tie %d to %d is %v, want %v", p, l.part, l.weight, want[p][l.part])
			}
			least = min(least, l.weight)
			delete(want[p], l.part)
		}
		for q, w := range want[p] {
			if w > least {
				t.Fatalf("micro-part %d forgot %d with weight %v, it has one with %v", p, q, w, least)
			}
		}
	}
}

// plainShuffle looks at every micro-part and every node in each step.
func plainShuffle(m *Map) []uint16 {
	owner := make([]uint16, len(m.parts))
	have := make([]int, len(m.members))
	for p := range m.parts {
		owner[p] = m.parts[p].owner
		have[owner[p]]++
	}
	quota, ties := quotas(m.members, len(m.parts)), bothSides(m.ties)
	tied := func(p, node int) (sum float32) {
		for _, l := range ties[p] {
			if int(owner[l.part]) == node {
				sum += l.weight
			}
		}
		return sum
	}
	for {
		part, to := -1, -1
		best := float32(math.Inf(-1))
		for p := range owner {
			if have[owner[p]] <= quota[owner[p]] {
				continue
			}
			for n := range have {
				if gain := tied(p, n) - tied(p, int(owner[p])); have[n] < quota[n] && gain > best {
					part, to, best = p, n, gain
				}
			}
		}
		if part < 0 {
			return owner
		}
		have[owner[part]]--
		have[to]++
		owner[part] = uint16(to)
	}
}

// A change of membership moves whole micro-parts, about 1/N of them, those that plain search finds; and it loses less
// of the cut than moving the first ones of each node.
func TestSimilarChange(t *testing.T) {
	c := config(t, 11, 8, 8000)
	m := similar(t, c)
	less := slices.Clone(c.Members)
	less[3].Weight = 0
	more := append(slices.Clone(c.Members), Member{"new", 1})
	both := slices.Clone(more)
	both[0].Weight = 0
	for _, members := range [][]Member{less, more, both} {
		next, err := m.Change(members)
		if err != nil {
			t.Fatal(err)
		}
		if next.Epoch != 4 || !slices.Equal(next.table, m.table) {
			t.Errorf("epoch %d, or items changed their micro-part", next.Epoch)
		}
		plain := *m
		plain.members = members
		want := plainShuffle(&plain)
		have := make([]int, len(members))
		for p, at := range next.parts {
			if at.owner != want[p] {
				t.Fatalf("micro-part %d went to %d, plainly to %d", p, at.owner, want[p])
			}
			have[at.owner]++
			if at.second == at.owner || !next.live(int(at.second)) {
				t.Fatalf("micro-part %d: %+v", p, at)
			}
		}
		if !slices.Equal(have, quotas(members, m.Parts())) {
			t.Errorf("%v micro-parts per node", have)
		}
		moves, _ := Moves(m, next, func(int32) int64 { return 1 })
		moved := 0
		for _, x := range moves {
			moved += x.Items
		}
		changes := len(members) - len(c.Members)
		for i := range c.Members {
			if members[i].Weight == 0 {
				changes++
			}
		}
		if share := float64(moved) / 8000; share > float64(changes)*1.2/8 {
			t.Errorf("%.3f of the items moved", share)
		}
	}
	// Into a ninth node: the first micro-parts of each node, instead of those that lose least.
	next, err := m.Change(more)
	if err != nil {
		t.Fatal(err)
	}
	first := *next
	first.parts = slices.Clone(m.parts)
	left := quotas(more, m.Parts())
	for p, at := range first.parts {
		if left[at.owner]--; left[at.owner] < 0 {
			first.parts[p].owner = 8
		}
	}
	if cut, plain := c.Graph.Cut(next), c.Graph.Cut(&first); cut >= plain {
		t.Errorf("the cut is %.4f, with the last micro-parts of each node moved %.4f", cut, plain)
	}
}

// Counts of held-out requests stay those of a recount, and accepted moves improve them.
func TestImprove(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	const items, parts = 600, 4
	g := graph(t, items, communities(r, items, 8, 1500))
	share := []float64{items / parts, items / parts, items / parts, items / parts}
	c := newCutter(g, heaviest(g), make([]uint16, items), []int{0, parts}, share)
	if err := c.run(2, dear, func(int) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var held [][]int32
	for range 300 {
		at, request := r.IntN(8)*75, []int32{items + 5, -1} // not in the catalog: left out
		for range 1 + r.IntN(10) {
			request = append(request, int32(at+r.IntN(75)))
		}
		held = append(held, request)
	}
	total := func() (sum int) {
		for _, request := range held {
			row := make([]uint16, parts)
			for _, i := range request[2:] {
				row[c.of[i]]++
			}
			sum += most(row)
		}
		return sum
	}
	before := total()
	j := newJudge(c, held)
	j.improve()
	if after := total(); after <= before {
		t.Errorf("%d items on best parts, before %d", after, before)
	}
	if again := newJudge(c, held); !slices.Equal(again.count, j.count) {
		t.Error("counts are not those of a recount")
	}
	load := make([]float64, parts)
	for _, p := range c.of {
		load[p]++
	}
	for p := range load {
		if load[p] != c.load[p] || load[p] > c.limit[p] {
			t.Errorf("part %d has %v items, counted %v, limit %v", p, load[p], c.load[p], c.limit[p])
		}
	}
}
