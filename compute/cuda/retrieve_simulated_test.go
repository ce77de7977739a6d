package cuda

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cuda/drivertest"
	"grebe/internal/offheap"
)

// retriever executes the kernels of retrieve.cu, plainly. It counts parts, and those whose lists overflowed.
type retriever struct {
	g             *drivertest.GPU
	parts, failed int
	unsure        int
	defines       map[string]string // of the last scan
}

func simulateRetrieval(g *drivertest.GPU) *retriever {
	x := &retriever{g: g}
	g.Kernels["retrieve_scan"], g.Kernels["retrieve_best"] = x.scan, x.best
	return x
}

func at[T any](g *drivertest.GPU, address uint64) *T {
	var v T
	return (*T)(unsafe.Pointer(&g.Bytes(address, int(unsafe.Sizeof(v)))[0]))
}

func sliceAt[T any](g *drivertest.GPU, address uint64, n int) []T {
	var v T
	return offheap.Slice[T](g.Bytes(address, n*int(unsafe.Sizeof(v))), n)
}

func fromBF16(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }

func (x *retriever) scan(l *drivertest.Launch) {
	number := func(i int) int { return int(int32(l.Args[i])) }
	rows, chunks, count, groups, step := number(7), number(8), number(9), number(10), number(11)
	first, end, dense := number(12), number(13), number(14) != 0
	width := chunks * retrieveChunk
	wide, _ := strconv.Atoi(l.Defines["QUERIES"])
	x.defines = l.Defines
	asks, state := sliceAt[retrieveAsk](x.g, l.Args[2], count), at[retrieveState](x.g, l.Args[3])
	lists, counts := sliceAt[uint64](x.g, l.Args[4], count*retrieveList), at[retrieveCounts](x.g, l.Args[6])
	blocks := l.Grid[0]
	owns, room := sliceAt[uint32](x.g, l.Args[5], count*blocks), retrieveOwn/blocks
	queries := sliceAt[uint16](x.g, l.Args[1], wide*width)
	if state.failed != 0 {
		return
	}
	clear(owns)
	for place := first; place < end; place++ {
		tile := place/retrieveGroup*step%groups*retrieveGroup + place%retrieveGroup
		for i := range retrieveTile {
			item := tile*retrieveTile + i
			if item >= rows {
				continue
			}
			v := sliceAt[uint16](x.g, l.Args[0]+uint64(2*item*width), width)
			for q := range count {
				a := &asks[q]
				key, broken := x.key(a, v, queries[q*width:(q+1)*width], item)
				switch {
				case broken:
					counts.broken[q]++
				case key <= state.bound[q] || key >= a.after:
				case dense:
					lists[q*retrieveList+(place-first)*retrieveTile+i] = key
				default:
					block := (place - first) / retrieveWarps % blocks
					if own := &owns[q*blocks+block]; int(*own) < room {
						lists[q*retrieveList+compute.MaxHits+block*room+int(*own)] = key
						*own++
						continue
					}
					if at := int(counts.added[q]); at < retrieveRoom {
						lists[q*retrieveList+retrieveShared+at] = key
					}
					counts.added[q]++
				}
			}
		}
	}
}

// key returns that of an item, 0 if it may not be found, and whether the score of one that may be is broken.
func (x *retriever) key(a *retrieveAsk, v, query []uint16, item int) (key uint64, broken bool) {
	if a.allowed != 0 && *at[uint32](x.g, uint64(a.allowed)+uint64(item/32*4))>>(item%32)&1 == 0 {
		return 0, false
	}
	if a.withouts > 0 {
		if _, out := slices.BinarySearch(sliceAt[int32](x.g, uint64(a.without), int(a.withouts)), int32(item)); out {
			return 0, false
		}
	}
	score := float32(0)
	for d := range v {
		score += fromBF16(v[d]) * fromBF16(query[d])
	}
	if f := float64(score); math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, true
	}
	return keyOf(compute.Hit{Item: int32(item), Score: score}), false
}

func (x *retriever) best(l *drivertest.Launch) {
	count := l.Grid[0]
	asks, state := sliceAt[retrieveAsk](x.g, l.Args[0], count), at[retrieveState](x.g, l.Args[1])
	counts, lists := at[retrieveCounts](x.g, l.Args[2]), sliceAt[uint64](x.g, l.Args[3], count*retrieveList)
	if state.failed != 0 {
		return
	}
	x.parts++
	if slices.Max(counts.added[:count]) > retrieveRoom {
		state.failed = uint32(l.Args[6])
		x.failed++
		return
	}
	blocks := int(int32(l.Args[8]))
	owns, room := sliceAt[uint32](x.g, l.Args[4], count*blocks), retrieveOwn/blocks
	for q := range count {
		list, keys := lists[q*retrieveList:][:retrieveList], []uint64(nil)
		if n := int(int32(l.Args[7])); n > 0 {
			keys = slices.DeleteFunc(slices.Clone(list[:n]), func(k uint64) bool { return k == 0 })
		} else {
			keys = append(keys, list[:state.kept[q]]...)
			for b, n := range owns[q*blocks : (q+1)*blocks] {
				keys = append(keys, list[compute.MaxHits+b*room:][:n]...)
			}
			keys = append(keys, list[retrieveShared:][:counts.added[q]]...)
		}
		state.listed[q] = uint32(len(keys))
		slices.SortFunc(keys, func(a, b uint64) int { return -compareKeys(a, b) })
		keys = keys[:min(len(keys), int(asks[q].k))]
		copy(list, keys)
		k, place, worst, bound := int(asks[q].k), int(asks[q].k), uint64(0), uint64(0)
		if share := int(int32(l.Args[9])); share > 1 {
			place = min(k, max(retrievePlace, k/share))
		}
		if len(keys) == k {
			worst = keys[k-1]
		}
		if bound = worst; place < k {
			if bound = 0; len(keys) > place {
				bound = keys[place-1]
			}
		}
		if l.Args[5] != 0 && worst < state.bound[q] {
			state.unsure = 1
			x.unsure++
		}
		state.kept[q], state.bound[q] = uint32(len(keys)), max(bound, state.bound[q])
		state.broken[q] += counts.broken[q]
		if l.Args[5] != 0 {
			out := sliceAt[compute.Hit](x.g, l.Args[5]+uint64(8*q*compute.MaxHits), compute.MaxHits)
			for i, k := range keys {
				out[i] = hitOf(k)
			}
		}
	}
}

// hitOf is hit_of of the kernel.
func hitOf(key uint64) compute.Hit {
	b := uint32(key >> 32)
	if b>>31 == 1 {
		b &= 1<<31 - 1
	} else {
		b = ^b
	}
	return compute.Hit{Item: int32(^uint32(key)), Score: math.Float32frombits(b)}
}

func compareKeys(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

// TestRetrievalOnASimulatedGPU: whatever the parts and whichever lists overflow, what is found is what sorting yields.
func TestRetrievalOnASimulatedGPU(t *testing.T) {
	g, d := simulate(t, Options{})
	x := simulateRetrieval(g)
	computetest.Retrieval(t, d)
	overflowing(t, d)
	if x.failed < 2 || x.unsure < 1 {
		t.Errorf("%d lists overflowed, %d answers were not sure", x.failed, x.unsure)
	}
}

// TestRetrievalOverflows is the same on a GPU.
func TestRetrievalOverflows(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	overflowing(t, d.(*device))
}

// overflowing retrieves items whose scores grow in the order in which they are looked at, which fills every list.
func overflowing(t *testing.T, d *device) {
	const items, width, group = 150_000, 3, retrieveTile * retrieveGroup
	groups := (items + group - 1) / group
	place := make([]int, groups)
	for i := range groups {
		place[i*coprime(groups)%groups] = i
	}
	score := func(item int) float32 { return float32(place[item/group]*group + item%group) }
	v, err := d.Vectors(items, width, func(first int, to []float32) error {
		for i := range to {
			n := int(score(first + i/width))
			to[i] = [width]float32{float32(n % 256), float32(n / 256 % 256), float32(n >> 16)}[i%width]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var order []compute.Hit
	for item := range items {
		order = append(order, compute.Hit{Item: int32(item), Score: score(item)})
	}
	slices.SortFunc(order, func(a, b compute.Hit) int { return -cmp.Compare(a.Score, b.Score) })
	up, down := []float32{1, 256, 65536}, []float32{-1, -256, -65536}
	qs := []compute.Query{{Vector: up, K: 1000}, {Vector: down, K: 10},
		{Vector: up, K: 1, Without: []int32{order[0].Item}}, {Vector: make([]float32, width), K: 5}}
	for range 2 {
		if err := v.Best(qs); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(qs[0].Hits, order[:1000]) || qs[2].Hits[0] != order[1] {
			t.Errorf("found %v …, want %v …", qs[0].Hits[:3], order[:3])
		}
		if len(qs[1].Hits) != 10 || qs[1].Hits[9].Score != -9 {
			t.Errorf("the worst are %v", qs[1].Hits)
		}
		for i, h := range qs[3].Hits {
			if h != (compute.Hit{Item: int32(i)}) {
				t.Errorf("of equals, place %d has %v", i, h)
			}
		}
	}
	// All of the best are in the first part, so that bounds are too high for the other parts.
	first := []compute.Query{{Vector: down, K: 1000}, {Vector: make([]float32, width), K: 1000}}
	if err := v.Best(first); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(order)
	for i, h := range first[0].Hits {
		if h.Item != order[i].Item || h.Score != -order[i].Score {
			t.Fatalf("the worst has at place %d %v, want item %d", i, h, order[i].Item)
		}
	}
	for i, h := range first[1].Hits {
		if h.Item != int32(i) {
			t.Fatalf("of equals, place %d has %v", i, h)
		}
	}
}

// TestRetrievalPlans: parts cover all tiles, grow no faster than lists can take, and have enough keys above bounds.
func TestRetrievalPlans(t *testing.T) {
	for _, end := range []int{8, 512, 520, 4688, 16_000, 312_504, 1_000_000, 1 << 26} {
		for _, k := range []int{1, 10, 64, 100, 256, 300, 1000, compute.MaxHits} {
			for _, most := range []int{1, retrieveShare} {
				begins, share := retrievePlan(end, k, most)
				place := k
				if share > 1 {
					place = min(k, max(retrievePlace, k/share))
				}
				if begins[0] != 0 || begins[len(begins)-1] != end || len(begins) > retrieveParts || share > most {
					t.Fatalf("%d tiles, best %d: parts %v, share %d", end, k, begins, share)
				}
				for i, from := range begins[1 : len(begins)-1] {
					growth := float64(begins[i+2]) / float64(from)
					if growth <= 1 || (growth-1)*float64(place) > 1.01*retrieveExpected || share > 1 && growth < 7.9 {
						t.Errorf("%d tiles, best %d, bounds at %d: parts %v grow by %.2f", end, k, place, begins, growth)
					}
				}
			}
		}
	}
}

// TestRetrievalStops: when a call of the driver fails, so does the search, nothing is under way behind it, and the next
// one is right.
func TestRetrievalStops(t *testing.T) {
	g, d := simulate(t, Options{})
	simulateRetrieval(g)
	v, err := d.Vectors(3, 2, func(_ int, to []float32) error {
		copy(to, []float32{1, 2, 3, 4, 5, 6})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	search := func() ([]compute.Query, error) {
		qs := []compute.Query{{Vector: []float32{1, 0}, K: 2}}
		return qs, v.Best(qs)
	}
	for n := 1; ; n++ {
		calls := 0
		g.Fail = func(string) int32 {
			if calls++; calls == n {
				return 1
			}
			return 0
		}
		_, err := search()
		g.Fail = nil
		if err == nil {
			break
		}
		if p := g.Pending(); len(p) > 0 {
			t.Fatalf("call %d failed, and %v are under way", n, p)
		}
		if d.Lost() != nil {
			t.Fatalf("call %d: the GPU was lost", n)
		}
		if n > 200 {
			t.Fatal("every search fails")
		}
	}
	qs, err := search()
	if want := []compute.Hit{{Item: 2, Score: 5}, {Item: 1, Score: 3}}; err != nil || !slices.Equal(qs[0].Hits, want) {
		t.Errorf("then %v, %v", qs[0].Hits, err)
	}
}

// TestKeys: keys order hits, and give them back.
func TestKeys(t *testing.T) {
	scores := []float32{math.MaxFloat32, 2, 1, math.SmallestNonzeroFloat32, 0, -math.SmallestNonzeroFloat32, -1,
		-math.MaxFloat32}
	last := uint64(math.MaxUint64)
	for _, s := range scores {
		for _, item := range []int32{0, 1, math.MaxInt32} {
			h := compute.Hit{Item: item, Score: s}
			k := keyOf(h)
			if k >= last || k == 0 || hitOf(k) != h {
				t.Errorf("%v: key %#x behind %#x gives %v", h, k, last, hitOf(k))
			}
			last = k
		}
	}
	if keyOf(compute.Hit{Score: float32(math.Copysign(0, -1))}) != keyOf(compute.Hit{}) {
		t.Error("there are two zeros")
	}
}
