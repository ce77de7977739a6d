package embed

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grebe/pool"
)

// tripStore is a store whose rows are a round trip away. Rows that it has are zeros.
type tripStore struct {
	Store
	asked int
}

func (s *tripStore) Gather(_ context.Context, keys []uint64, _ []byte, found []bool) error {
	s.asked += len(keys)
	for i := range keys {
		found[i] = true
	}
	return nil
}

func (*tripStore) RowBytes() int { return 32 }

func heldBits(s *Shards) (out []uint32) {
	for i, b := range s.AppendHeld(nil) {
		for k := range 8 {
			if b>>k&1 == 1 {
				out = append(out, uint32(8*i+k))
			}
		}
	}
	return out
}

// A shard is held once most of its look-ups hit, and no longer once its rows left the cache.
func TestShardsAreHeldWhileTheirRowsAreCached(t *testing.T) {
	const items, grain = 1 << 16, 64
	p, err := pool.New(1<<17, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := NewCache(p, Config{Rows: 2048, RowBytes: 32, Policy: "lru"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	store := &tripStore{}
	table, err := NewTable(store, c, TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	table.CountShards(items)
	s := table.Shards()
	if s.Of(items-1) != MostShards-1 || s.Of(grain-1) != 0 || s.Of(grain) != 1 || s.Of(1<<40) != MostShards-1 {
		t.Fatalf("keys are in shards %d, %d, %d", s.Of(items-1), s.Of(grain-1), s.Of(grain))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	look := func(first, shards, batches int) {
		keys, out := make([]uint64, 300), make([]byte, 300*32)
		for range batches {
			for i := range keys {
				keys[i] = uint64((first+rng.IntN(shards))*grain + rng.IntN(grain))
			}
			table.Gather(context.Background(), keys, out)
		}
	}
	look(100, 16, 200)
	want := []uint32{}
	for i := range uint32(16) {
		want = append(want, 100+i)
	}
	if got := heldBits(s); !slices.Equal(got, want) {
		t.Errorf("holds %v, want %v", got, want)
	}
	look(400, 512, 800) // 32,768 rows through a cache of 2,048
	look(100, 16, 1)    // of which few are left
	if got := heldBits(s); len(got) > 0 {
		t.Errorf("holds %v of what left the cache", got)
	}
	if s.RowMs() <= 0 || s.RowMs() > 1 {
		t.Errorf("a row takes %v ms", s.RowMs())
	}
	if n := testing.AllocsPerRun(100, func() { s.Count([]uint64{1, 2, 3}, []int32{1}) }); n > 0 {
		t.Errorf("counting allocates %v times", n)
	}
}

// All shards of a catalog that is cached are held, however large batches are.
func TestLargeBatchesHoldAllShards(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, batch := range []int{100, 1000, 4000, 20_000} {
		s, keys := NewShards(1<<20, 0), make([]uint64, batch)
		for range 1000 {
			for i := range keys {
				keys[i] = rng.Uint64N(1 << 20)
			}
			s.Count(keys, nil)
		}
		if got := len(heldBits(s)); got < 1000 {
			t.Errorf("with batches of %d %d of 1,024 shards are held", batch, got)
		}
	}
}

// The time of a row is that of recent round trips.
func TestTheTimeOfARowFollowsTheStore(t *testing.T) {
	s := NewShards(100, 0)
	if s.RowMs() != 0 {
		t.Error("a time before the first round trip")
	}
	s.Fetched(1000, time.Hour) // connects
	for range 10 {
		s.Fetched(1000, 100*time.Millisecond)
	}
	if got := s.RowMs(); got < .099 || got > .101 {
		t.Errorf("%v ms, want 0.1", got)
	}
	for range 100 {
		s.Fetched(1000, 10*time.Millisecond)
	}
	if got := s.RowMs(); got < .0099 || got > .0101 {
		t.Errorf("%v ms, want 0.01", got)
	}
}

// What a thousand rows take does not depend on how many rows the measured round trips brought.
func TestShortTripsDoNotMakeRowsDear(t *testing.T) {
	for _, rows := range []int{1, 3, 16, 256, 2000} {
		s := NewShards(100, 0)
		for range 100 { // half a millisecond to the store, and 2 µs for a row
			s.Fetched(rows, 500*time.Microsecond+time.Duration(rows)*2*time.Microsecond)
		}
		if got := 1000 * s.RowMs(); got < 1.9 || got > 4.1 {
			t.Errorf("after trips of %d rows 1,000 take %.1f ms, want 2 to 4", rows, got)
		}
	}
}

// Hottest agrees with sorting.
func TestHottestShards(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		s := NewShards(1+rng.IntN(1<<rng.IntN(20)), 0)
		counts, keys := map[uint32]int{}, make([]uint64, rng.IntN(200))
		for i := range keys {
			keys[i] = uint64(rng.IntN(1+rng.IntN(1<<12))) << s.shift
			counts[s.Of(keys[i])]++
		}
		var want []uint32
		for shard := range counts {
			want = append(want, shard)
		}
		slices.SortFunc(want, func(a, b uint32) int {
			if counts[a] != counts[b] {
				return counts[b] - counts[a]
			}
			return int(a) - int(b)
		})
		got := s.Hottest([]uint32{7}, slices.Values(keys))[1:]
		if want = want[:min(Profile, len(want))]; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// Behind a slow link, what a row takes does not depend on how short the round trips are.
func TestTripsOfFewRowsTellWhatARowTakes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, row := range []time.Duration{2 * time.Microsecond, 200 * time.Microsecond} {
		s := NewShards(100, 0)
		for range 200 {
			rows := 1 + rng.IntN(150)
			way := 200*time.Microsecond + time.Duration(rng.IntN(100))*time.Microsecond
			s.Fetched(rows, way+time.Duration(rows)*row)
		}
		if got, want := s.RowMs(), row.Seconds()*1e3; got < .8*want || got > 1.25*want {
			t.Errorf("a row takes %.4f ms, want about %.4f", got, want)
		}
	}
}
