package attend

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/split"
)

// batchOf draws a batch of several plans in which every kind of segment occurs.
func batchOf(r *rand.Rand, plans int) *compute.Batch {
	b := &compute.Batch{}
	for range plans {
		base := int32(len(b.Segments))
		switch r.IntN(6) {
		case 0: // causal
			addSegment(b, r, 1+r.IntN(700), nil)
		case 1: // pointwise
			for range 1 + r.IntN(30) {
				addSegment(b, r, r.IntN(12), nil)
			}
		case 2: // item-first
			n := 1 + r.IntN(40)
			for range n {
				addSegment(b, r, 1+r.IntN(20), nil)
			}
			addSegment(b, r, r.IntN(300), all(base, n))
			addSegment(b, r, 1+r.IntN(20), all(base, n+1))
		case 3: // user-first
			addSegment(b, r, r.IntN(400), nil)
			for range 1 + r.IntN(40) {
				addSegment(b, r, 1+r.IntN(20), []int32{base})
			}
		case 4: // beams of few tokens behind a prompt
			addSegment(b, r, 1+r.IntN(400), nil)
			for range 1 + r.IntN(80) {
				addSegment(b, r, 1+r.IntN(3), []int32{base})
			}
		case 5: // anything sees anything, in any order, and up to three times
			for i := range 1 + r.IntN(12) {
				var sees []int32
				for _, j := range r.Perm(i) {
					for range []int{0, 0, 0, 1, 1, 1, 2, 3}[r.IntN(8)] {
						sees = append(sees, base+int32(j))
					}
				}
				addSegment(b, r, r.IntN(150), sees)
			}
		}
	}
	return b
}

func all(base int32, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = base + int32(i)
	}
	return out
}

// addSegment adds a segment that is cached in part and lies in chunks of odd sizes.
func addSegment(b *compute.Batch, r *rand.Rand, length int, sees []int32) {
	g := compute.Segment{First: len(b.Tokens), Len: length, Sees: sees}
	switch r.IntN(3) {
	case 0:
		g.Cached = length
	case 1:
		g.Cached = r.IntN(length + 1)
	}
	for room := 0; room < length; {
		n := 1 + r.IntN(100)
		g.Chunks = append(g.Chunks, compute.Chunk{Addr: uint64(1+len(b.Segments))<<32 + uint64(room)<<8, Tokens: n})
		room += n
	}
	for range g.Rows() {
		b.Tokens = append(b.Tokens, 0)
		b.Positions = append(b.Positions, 0)
	}
	b.Segments = append(b.Segments, g)
}

// reader reads a list as the kernels do.
type reader []int32

func (l reader) unit(i int32) []int32 { return l[l[listUnits]+unitWords*i:][:unitWords] }

func (l reader) span(u []int32, i int32) (start, end int32) {
	if i < 2 {
		return u[12+2*i], u[13+2*i]
	}
	at := l[listSpans] + 2*(u[9]+i-2)
	return l[at], l[at+1]
}

// visible adds 1 to every (row, slot) that unit u goes through, steps and masks as in attend.cu.
func (l reader) visible(u []int32, seen [][]int8) error {
	done := int32(0)
	for i := range u[10] {
		start, end := l.span(u, i)
		for ; start < end; start += stepKeys {
			done++
			for t := range u[1] & 255 {
				row := u[0] + t
				low, high := start, end-1
				if i == u[11] {
					low, high = start, start+stepKeys-1 // not masked
					if start < u[3] || start+stepKeys-1 > u[4] {
						low, high = l[l[listLows]+row], l[l[listHighs]+row]
					}
				}
				for key := max(low, start); key <= min(high, start+stepKeys-1); key++ {
					if int(key) >= len(seen[row]) {
						return fmt.Errorf("row %d sees slot %d of %d", row, key, len(seen[row]))
					}
					seen[row][key]++
				}
			}
		}
	}
	if done != u[2] {
		return fmt.Errorf("unit of rows from %d has %d steps, its spans %d", u[0], u[2], done)
	}
	return nil
}

// wanted is the dense mask over slots, which are the tokens of the segments in order.
func wanted(b *compute.Batch) [][]int8 {
	first, keys := make([]int, len(b.Segments)), 0
	for i := range b.Segments {
		first[i] = keys
		keys += b.Segments[i].Len
	}
	var out [][]int8
	for i := range b.Segments {
		g := &b.Segments[i]
		for token := g.Cached; token < g.Len; token++ {
			row := make([]int8, keys)
			for _, j := range g.Sees {
				for t := range b.Segments[j].Len {
					row[first[j]+t]++
				}
			}
			for t := 0; t <= token; t++ {
				row[first[i]+t]++
			}
			out = append(out, row)
		}
	}
	return out
}

// TestPlanSeesWhatTheMaskSays holds the list, read as the kernels read it, against the dense mask.
func TestPlanSeesWhatTheMaskSays(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}}
	var list []int32
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		b := batchOf(r, 1+r.IntN(4))
		group, heads, blocks := 1+r.IntN(12), 1+r.IntN(4), []int{1, 7, 132}[r.IntN(3)]
		p.build(b, nil, Held{}, tileRows/group)
		way := split.Candidates()[seed%uint64(len(split.Candidates()))]
		p.forced = nil
		p.cutUnits(heads, blocks, 2*blocks)
		if _, ok := p.work.Load(way); ok {
			p.forced = &way
			p.cutUnits(heads, blocks, 2*blocks)
		}
		list = p.encode(list[:0])
		if err := checkList(list, b, tileRows/group, heads, blocks); err != nil {
			t.Fatalf("seed %d: %d rows, %d segments, group %d, %d heads, %d blocks, cut %v: %v", seed, len(b.Tokens),
				len(b.Segments), group, heads, blocks, way, err)
		}
		p.hurry, p.forced = true, nil
		p.cutUnits(heads, blocks, 2*blocks)
		p.hurry = false
		list = p.encode(list[:0])
		if err := checkList(list, b, tileRows/group, heads, blocks); err != nil || int(p.parts) > 2*blocks {
			t.Fatalf("seed %d, cut in a hurry into %d parts for %d blocks: %v", seed, p.parts, blocks, err)
		}
	}
}

func checkList(list reader, b *compute.Batch, tokens, heads, blocks int) error {
	return checkMask(list, b, wanted(b), tokens, heads, blocks)
}

func checkMask(list reader, b *compute.Batch, want [][]int8, tokens, heads, blocks int) error {
	for head := range heads {
		got := make([][]int8, len(want))
		for i := range got {
			got[i] = make([]int8, len(want[i]))
		}
		for i := range list[listUnitCount] {
			u := list.unit(i)
			if n := u[1] & 255; n < 1 || int(n) > tokens || u[2] < 1 || int(u[1]>>8) >= heads {
				return fmt.Errorf("unit %d has %d tokens, %d steps and is of head %d", i, n, u[2], u[1]>>8)
			}
			if int(u[1]>>8) != head {
				continue
			}
			if err := list.visible(u, got); err != nil {
				return err
			}
		}
		for row := range want {
			for slot := range want[row] {
				if want[row][slot] != got[row][slot] {
					return fmt.Errorf("head %d row %d goes through slot %d %d times, want %d", head, row, slot, got[row][slot],
						want[row][slot])
				}
			}
		}
	}
	return checkBlocks(list, blocks)
}

// checkBlocks: blocks do all units, each once, and parts are numbered so that they can be merged.
func checkBlocks(list reader, blocks int) error {
	next := int32(0)
	for i := range blocks {
		at := list[listBlocks+blockWords*i:]
		if at[0] != next {
			return fmt.Errorf("block %d begins with unit %d, want %d", i, at[0], next)
		}
		next += at[1]
	}
	if next != list[listUnitCount] {
		return fmt.Errorf("blocks do %d units of %d", next, list[listUnitCount])
	}
	parts, counters := map[int32][]int32{}, map[int32]int32{}
	for i := range list[listUnitCount] {
		u := list.unit(i)
		if u[5] < 0 {
			continue
		}
		if parts[u[5]] != nil || u[5] < u[6] || u[5] >= u[6]+u[7] || u[7] < 2 || int(u[5]) >= 2*blocks {
			return fmt.Errorf("unit %d is part %d of %d from %d, of at most %d", i, u[5], u[7], u[6], 2*blocks)
		}
		parts[u[5]] = u
		counters[u[8]]++
	}
	for i, u := range parts {
		if first := parts[u[6]]; first == nil || first[8] != u[8] || first[0] != u[0] || first[1] != u[1] ||
			counters[u[8]] != u[7] {
			return fmt.Errorf("part %d of rows from %d does not belong to part %d, or its tile has %d parts and not %d", i, u[0],
				u[6], counters[u[8]], u[7])
		}
	}
	return nil
}

// some draws rows of a batch that are left, some of them in runs.
func some(r *rand.Rand, rows int) []int32 {
	left := []int32{}
	keep := false
	for row := range rows {
		if r.IntN(3) == 0 {
			keep = r.IntN(2) == 0
		}
		if keep {
			left = append(left, int32(row))
		}
	}
	return left
}

// TestRowsLeftSeeWhatTheySaw: rows that are left see what they see in the whole batch, from the slots of their
// tokens, and what is neither computed nor held is copied, from where it lies. What is held is left alone.
func TestRowsLeftSeeWhatTheySaw(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		b := batchOf(r, 1+r.IntN(4))
		left, tokens, heads := some(r, len(b.Tokens)), tileRows/(1+r.IntN(12)), 1+r.IntN(2)
		held := someHeld(r, len(b.Tokens))
		p.build(b, left, held, tokens)
		p.cutUnits(heads, 132, 264)
		all, want := wanted(b), [][]int8{}
		for _, row := range left {
			want = append(want, all[row])
		}
		if err := checkMask(p.encode(nil), b, want, tokens, heads, 132); err != nil {
			t.Fatalf("seed %d: %d of %d rows: %v", seed, len(left), len(b.Tokens), err)
		}
		blocks := p.cutSingly(heads)
		if err := checkMask(p.encode(nil), b, want, tokens, heads, blocks); err != nil {
			t.Fatalf("seed %d: %d of %d rows, a block for each tile: %v", seed, len(left), len(b.Tokens), err)
		}
		if err := checkBrought(&p, b, left, held); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// someHeld draws what the scratch holds, or nothing.
func someHeld(r *rand.Rand, rows int) (held Held) {
	held.Cached = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		held.Rows = make([]bool, rows)
		for _, row := range some(r, rows) {
			held.Rows[row] = true
		}
	}
	return held
}

// checkBrought: every token is computed, held or copied from its chunk, and what is held is not overwritten.
func checkBrought(p *plan, b *compute.Batch, left []int32, held Held) error {
	copied := map[int32]string{}
	for _, c := range p.pieces {
		for i := range c.tokens {
			if copied[c.slot+i] != "" {
				return fmt.Errorf("slot %d is copied twice", c.slot+i)
			}
			copied[c.slot+i] = fmt.Sprint(c.addr, c.room, c.token+i)
		}
	}
	slot := int32(0)
	for i := range b.Segments {
		g := &b.Segments[i]
		chunk, token := 0, 0
		for k := range g.Len {
			for ; token == g.Chunks[chunk].Tokens; token = 0 {
				chunk++
			}
			ch, row := &g.Chunks[chunk], g.First+k-g.Cached
			_, computed := slices.BinarySearch(left, int32(row))
			there := k < g.Cached && held.Cached || k >= g.Cached && (computed || held.Rows != nil && held.Rows[row])
			switch from := copied[slot]; {
			case from == "" && !there:
				return fmt.Errorf("segment %d: nobody brings token %d of %d (%d cached)", i, k, g.Len, g.Cached)
			case from != "" && from != fmt.Sprint(ch.Addr, ch.Tokens, token):
				return fmt.Errorf("segment %d token %d is copied from %s, want %d %d %d", i, k, from, ch.Addr, ch.Tokens, token)
			case from != "" && there && !(computed && held.Rows == nil) && !(k < g.Cached && held.Rows == nil && g.Rows() > 0):
				return fmt.Errorf("segment %d: token %d of %d (%d cached) is there, and copied", i, k, g.Len, g.Cached)
			}
			slot++
			token++
		}
	}
	return nil
}

// TestPiecesCoverWhatIsCached: every cached token is copied once, from where it lies.
func TestPiecesCoverWhatIsCached(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}}
	for seed := range uint64(100) {
		b := batchOf(rand.New(rand.NewPCG(seed, 8)), 2)
		p.build(b, nil, Held{}, 16)
		from := map[int32]string{}
		for _, c := range p.pieces {
			for i := range c.tokens {
				if c.token+i >= c.room || from[c.slot+i] != "" {
					t.Fatalf("seed %d: token %d of a chunk for %d, or slot %d is copied twice", seed, c.token+i, c.room, c.slot+i)
				}
				from[c.slot+i] = fmt.Sprint(c.addr, c.token+i)
			}
		}
		slot := int32(0)
		for i := range b.Segments {
			g := &b.Segments[i]
			chunk, token := 0, 0
			for k := range g.Len {
				for ; token == g.Chunks[chunk].Tokens; token = 0 {
					chunk++
				}
				want := ""
				if k < g.Cached {
					want = fmt.Sprint(g.Chunks[chunk].Addr, token)
				}
				if from[slot] != want {
					t.Fatalf("seed %d segment %d token %d of %d (%d cached): copied from %q, want %q", seed, i, k, g.Len, g.Cached,
						from[slot], want)
				}
				slot++
				token++
			}
		}
	}
}

// TestPlanShapes pins how the cases that matter are cut.
func TestPlanShapes(t *testing.T) {
	causal := func(n int) *compute.Batch { return sequence(n) }
	for _, c := range []struct {
		name                  string
		batch                 *compute.Batch
		tiles, spans, longest int
	}{
		{"causal 1,024", causal(1024), 49, 0, 5},
		{"causal 4,096", causal(4096), 196, 0, 32},
		{"item-first", itemFirst(1500, 100, 10), 72, 0, 20},
		{"user-first", userFirst(1500, 100, 10), 48, 1, 13},
	} {
		p := plan{cut: cut{costs: measuredCosts}}
		p.build(c.batch, nil, Held{}, tileRows/6)
		p.cutUnits(2, 132, 264)
		longest, spans := 0, 0
		for i := range p.units {
			longest = max(longest, int(p.units[i].to-p.units[i].from))
		}
		for i := range p.tiles {
			spans = max(spans, int(p.tiles[i].spans.end-p.tiles[i].spans.start))
		}
		busiest := 0
		for _, b := range p.blocks {
			load := 0
			for _, u := range p.units[b.start:b.end] {
				load += stepCost*int(u.to-u.from) + p.costs.unit
				if u.part >= 0 {
					load += p.costs.part
				}
			}
			busiest = max(busiest, load)
		}
		t.Logf("%s: %d tiles, %d units, %d parts, longest %d of %d steps, busiest block %d quarters", c.name, len(p.tiles),
			len(p.units), p.parts, longest, p.tiles[len(p.tiles)-1].steps, busiest)
		if len(p.tiles) != c.tiles || spans != c.spans || longest > c.longest {
			t.Errorf("%s: %d tiles with up to %d spans, units of up to %d steps; want %d, %d, %d", c.name, len(p.tiles), spans,
				longest, c.tiles, c.spans, c.longest)
		}
	}
}

func sequence(n int) *compute.Batch {
	b := &compute.Batch{}
	add(b, n, 0, nil)
	return b
}

// itemFirst is a user behind cached items.
func itemFirst(user, items, length int) *compute.Batch {
	b := &compute.Batch{}
	for range items {
		add(b, length, length, nil)
	}
	add(b, user, 0, all(0, items))
	return b
}

// userFirst are items behind a cached user.
func userFirst(user, items, length int) *compute.Batch {
	b := &compute.Batch{}
	add(b, user, user, nil)
	for range items {
		add(b, length, 0, []int32{0})
	}
	return b
}

// add adds a segment in chunks of 64 tokens, without memory behind them.
func add(b *compute.Batch, length, cached int, sees []int32) {
	g := compute.Segment{First: len(b.Tokens), Len: length, Cached: cached, Sees: sees}
	for room := 0; room < length; {
		n := 64
		if length < short {
			n = length
		}
		g.Chunks = append(g.Chunks, compute.Chunk{Tokens: n})
		room += n
	}
	for i := range g.Rows() {
		b.Tokens = append(b.Tokens, 0)
		b.Positions = append(b.Positions, int32(i))
	}
	b.Segments = append(b.Segments, g)
}

func TestPlanningDoesNotAllocate(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}}
	var list []int32
	b := batchOf(rand.New(rand.NewPCG(3, 3)), 8)
	run := func() {
		p.build(b, nil, Held{}, 21)
		p.cutUnits(2, 132, 264)
		list = p.encode(list[:0])
	}
	run()
	if n := testing.AllocsPerRun(20, run); n > 0 {
		t.Errorf("planning allocates %v times", n)
	}
}

func BenchmarkPlan(b *testing.B) {
	for name, batch := range map[string]*compute.Batch{
		"causal4096": sequence(4096), "itemfirst": itemFirst(1500, 100, 10), "userfirst": userFirst(1500, 100, 10)} {
		b.Run(name, func(b *testing.B) {
			p := plan{cut: cut{costs: measuredCosts}}
			var list []int32
			for b.Loop() {
				p.build(batch, nil, Held{}, 21)
				p.cutUnits(2, 132, 264)
				list = p.encode(list[:0])
			}
		})
	}
}
