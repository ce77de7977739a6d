package evict

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"grebe/internal/scripttest"
)

// A cache that asks a policy, with a predictor that knows only what requests say. Time is the number of requests,
// unless a request gives at.
//
//	cache lru slots=3              a new cache; bytes is its capacity if entries have sizes
//	use a return=9 bytes=2         requests entries; also cost, at
//	use a b c times=5 quietly=yes  several, again and again; prints only the number of hits; a..f are six
//	pin a; unpin a                 an entry that must not be evicted
//	remove a                       removes an entry for a reason other than room
//	predict a 50                   a prediction that arrives after the request
//	resize 2
//	floor                          the default policy's statistics
func TestScenarios(t *testing.T) {
	scripttest.Files(t, "testdata/scenarios/*.txt", (*scenario).run)
}

type scenario struct {
	policy   Policy
	capacity int64
	slots    []string // name of each slot's entry; "" for none
	sizes    []int64
	pinned   map[string]bool
	now      int64
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	switch c.Name {
	case "cache":
		n := c.Int("slots", 3)
		s.capacity = int64(c.Int("bytes", n))
		p, err := New(c.Word(0), Config{Slots: n, Bytes: s.capacity, Refresh: func([]Slot, []int64) {}})
		if err != nil {
			c.Fatal(err)
		}
		s.policy, s.slots, s.sizes, s.pinned, s.now = p, make([]string, n), make([]int64, n), map[string]bool{}, 0
	case "use":
		hits, all := 0, 0
		for range c.Int("times", 1) {
			for _, name := range names(c.Words) {
				hit, line := s.use(name, c)
				if all++; hit {
					hits++
				}
				if !c.Has("quietly") {
					fmt.Fprintln(out, line)
				}
			}
		}
		if c.Has("quietly") {
			fmt.Fprintf(out, "%d of %d hit\n", hits, all)
		}
	case "pin", "unpin":
		for _, name := range c.Words {
			s.pinned[name] = c.Name == "pin"
		}
	case "remove":
		slot := s.slot(c.Word(0), c)
		s.policy.Remove(slot)
		s.slots[slot], s.sizes[slot] = "", 0
	case "predict":
		var at int64
		fmt.Sscan(c.Word(1), &at)
		s.policy.Predict(s.slot(c.Word(0), c), at)
	case "resize":
		fmt.Sscan(c.Word(0), &s.capacity)
		s.policy.Resize(s.capacity)
		if gone := s.shrink(0); gone != "" {
			fmt.Fprintf(out, "evicts%s\n", gone)
		}
	case "floor":
		st := s.policy.(*Floor).Stats()
		fmt.Fprintf(out, "%d hits, LRU has %d; %d forced, lent at most %d", st.Hits, st.LRUHits, st.Forced, st.Lent)
		if st.Keeping {
			fmt.Fprint(out, ", keeping")
		}
		fmt.Fprintln(out)
	default:
		c.Fatal("no such command")
	}
}

// names expands a..d, and e1..e90.
func names(words []string) (out []string) {
	for _, w := range words {
		first, last, ok := strings.Cut(w, "..")
		var from, to int
		switch n, _ := fmt.Sscanf(first+" "+last, "e%d e%d", &from, &to); {
		case !ok:
			out = append(out, w)
		case n == 2:
			for i := from; i <= to; i++ {
				out = append(out, fmt.Sprint("e", i))
			}
		default:
			for b := first[0]; b <= last[0]; b++ {
				out = append(out, string(b))
			}
		}
	}
	return out
}

func (s *scenario) slot(name string, c *scripttest.Command) Slot {
	i := slices.Index(s.slots, name)
	if i < 0 {
		c.Fatal(name + " is not cached")
	}
	return Slot(i)
}

// use requests an entry and describes the result.
func (s *scenario) use(name string, c *scripttest.Command) (hit bool, line string) {
	s.now = int64(c.Int("at", int(s.now)+1))
	a := Access{Key: keyOf(name), Bytes: int64(c.Int("bytes", 1)), Now: s.now, Return: int64(c.Int("return", 0)),
		Cost: c.Float("cost", 0)}
	if i := slices.Index(s.slots, name); i >= 0 {
		a.Bytes = s.sizes[i]
		s.policy.Hit(Slot(i), a)
		return true, name + " hits"
	}
	s.policy.Miss(a)
	gone := s.shrink(a.Bytes)
	free := slices.Index(s.slots, "")
	if free < 0 || s.held()+a.Bytes > s.capacity {
		return false, name + " finds no room" + gone
	}
	s.slots[free], s.sizes[free] = name, a.Bytes
	s.policy.Insert(Slot(free), a)
	if gone != "" {
		return false, name + " evicts" + gone
	}
	return false, name + " misses"
}

// shrink makes room for some bytes and a slot, and returns the names of the victims.
func (s *scenario) shrink(bytes int64) (gone string) {
	for s.held()+bytes > s.capacity || bytes > 0 && !slices.Contains(s.slots, "") {
		slot, ok := s.policy.Victim(func(slot Slot) bool { return !s.pinned[s.slots[slot]] })
		if !ok {
			break
		}
		gone += " " + s.slots[slot]
		s.slots[slot], s.sizes[slot] = "", 0
	}
	return gone
}

func (s *scenario) held() (sum int64) {
	for _, n := range s.sizes {
		sum += n
	}
	return sum
}

// keyOf returns the key for a name; that of a letter is small.
func keyOf(name string) uint64 {
	key := uint64(0)
	for _, b := range []byte(name) {
		key = key*256 + uint64(b)
	}
	return key * 0x9E3779B97F4A7C15
}
