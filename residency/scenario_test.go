package residency

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"grebe/internal/scripttest"
	"grebe/plan"
)

// The books of a store. The owner's copies and writes take as long as the scenario wants. Entries called u… are
// users.
//
//	books lru device=2 host=2          levels and their places; without host there is one; disk=no: there is no disk
//	publish a                          a new entry in the top level; tokens, owner;
//	                                   at=host: fetched from disk into host memory
//	use a                              the device can use it where it is; far=yes: only in its own memory
//	need device pinned=a,b             prints the entry to evict
//	moved a host                       the copy of an entry that is evicted or moves up has ended;
//	                                   failed=yes: there was no room
//	delete a
//	write host                         prints the entry to write next
//	written a                          failed=yes: the write failed
//	stored a; lost a                   the entry is on disk, or no longer is
//	where a b                          prints what the books know about entries
//	owned 1                            prints the number of an owner's keys
func TestScenarios(t *testing.T) {
	scripttest.Files(t, "testdata/*.txt", (*scenario).run)
}

type scenario struct {
	books           *Core[int]
	moving, writing map[string]*entry
}

func keyOf(name string) plan.Key {
	var k plan.Key
	copy(k[:], name)
	return k
}

func nameOf(h *entry) string { return strings.TrimRight(string(h.Key[:]), "\x00") }

func levelOf(c *scripttest.Command, i int) int {
	at := slices.Index([]string{"device", "host"}, c.Word(i))
	if at < 0 {
		c.Fatal("want device or host")
	}
	return at
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	print := func(what string) { fmt.Fprintf(out, "%s %s\n", c.Word(0), what) }
	switch c.Name {
	case "books":
		s.open(c)
	case "publish":
		s.publish(c, print)
	case "use":
		h, where := s.books.Use(keyOf(c.Word(0)), func(h *entry) bool { return !c.Has("far") })
		if where == Up {
			s.moving[c.Word(0)] = h
		}
		print([]string{"is not held", "is used where it is", "is on its way", "is brought up"}[where])
	case "need":
		h, exit := s.books.Need(levelOf(c, 0), func(h *entry) bool { return !slices.Contains(c.List("pinned"), nameOf(h)) })
		switch {
		case h == nil:
			fmt.Fprintf(out, "%s: nobody leaves\n", c.Word(0))
		case exit == Lower:
			s.moving[nameOf(h)] = h
			fmt.Fprintf(out, "%s: %s goes to the host\n", c.Word(0), nameOf(h))
		default:
			fmt.Fprintf(out, "%s: %s leaves memory\n", c.Word(0), nameOf(h))
		}
	case "moved":
		h := s.moving[c.Word(0)]
		delete(s.moving, c.Word(0))
		landed := s.books.Moved(h, levelOf(c, 1), !c.Has("failed"))
		print([]string{"is there", "is back in the host's memory", "leaves memory",
			"is gone meanwhile: the copy is dropped"}[landed])
	case "delete":
		if s.books.Delete(keyOf(c.Word(0))) == nil {
			print("is not held")
		}
	case "write":
		if h := s.books.Dirty(levelOf(c, 0)); h != nil {
			s.writing[nameOf(h)] = h
			print("writes " + nameOf(h))
		} else {
			print("has nothing to write")
		}
	case "written":
		s.books.Written(s.writing[c.Word(0)], !c.Has("failed"), c.Has("failed"))
		delete(s.writing, c.Word(0))
	case "stored":
		s.books.Stored(keyOf(c.Word(0)), Entry{Kind: plan.Item, Tokens: int32(c.Int("tokens", 10)),
			Owner: uint32(c.Int("owner", 0))})
	case "lost":
		s.books.Lost(keyOf(c.Word(0)))
	case "where":
		for _, name := range c.Words {
			e, ok := s.books.Lookup(keyOf(name))
			if !ok {
				e.Tier = plan.Missing
			}
			fmt.Fprintf(out, "%s: %v, %d tokens\n", name, e.Tier, e.Tokens)
		}
	case "owned":
		fmt.Fprintf(out, "owner %s: %d\n", c.Word(0), s.books.Owned(uint32(c.Word(0)[0]-'0')))
	default:
		c.Fatal("no such command")
	}
	if err := s.books.Check(func(*entry) error { return nil }); err != nil {
		c.Fatal(err)
	}
}

func (s *scenario) open(c *scripttest.Command) {
	cfg := Config{Policy: c.Word(0), Below: !c.Has("disk"), Chunk: 64}
	for i, name := range []string{"device", "host"} {
		if n := c.Int(name, 0); n > 0 {
			cfg.Levels = append(cfg.Levels, LevelConfig{Tier: plan.Device + plan.Tier(i), Slots: n, Bytes: int64(n) * 100})
		}
	}
	books, err := New[int](cfg)
	if err != nil {
		c.Fatal(err)
	}
	s.books, s.moving, s.writing = books, map[string]*entry{}, map[string]*entry{}
}

func (s *scenario) publish(c *scripttest.Command, print func(string)) {
	name, to := c.Word(0), 0
	h := &entry{Key: keyOf(name), Kind: plan.Item, Tokens: c.Int("tokens", 10), Bytes: 100,
		Owner: uint32(c.Int("owner", 0))}
	if name[0] == 'u' {
		h.Kind, h.Named = plan.User, true
	}
	if c.Has("at") {
		to = 1
		h.Fetched()
	}
	did, old, write := s.books.Publish(h, to, false)
	what := []string{"is there already", "is placed", "finds no place"}[did]
	if old != nil {
		what += fmt.Sprintf(", replaces %d tokens", old.Tokens)
	}
	if write {
		s.writing[name] = h
		what += ", is written"
	}
	print(what)
}
