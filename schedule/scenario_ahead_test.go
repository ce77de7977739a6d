package schedule

import (
	"fmt"
	"strconv"
	"strings"

	"grebe/internal/scripttest"
)

// computing is what scenarios of work ahead know. A token takes one byte.
//
//	catalog a b*3 c*0*2                items in their order: how often requests named each, and histories list it;
//	                                   cached=100: so many before them are cached
//	lengths a=10 b=20                  tokens to compute; 10 where nothing is said, 0: it is cached or deleted
//	space memory=0/1000 disk=0/500     used and total; without disk there is none;
//	                                   wide=?: prints whether it is worth to go on
//	ahead 30                           prints the next items of at most so many tokens, and where they go;
//	                                   they take room there
//	again items=640 changed=10         prints whether all are looked at again; hot and fresh: the hottest
type computing struct {
	ahead   *Ahead
	items   []string
	lengths map[string]int
	room    AheadRoom
}

// computeAhead runs a command of work ahead, and reports whether it is one.
func (s *scenario) computeAhead(c *scripttest.Command) bool {
	switch c.Name {
	case "catalog":
		s.listItems(c)
	case "lengths":
		for _, it := range s.items {
			s.lengths[it] = c.Int(it, s.lengths[it])
		}
	case "space":
		s.room = AheadRoom{Memory: space(c, "memory"), Disk: space(c, "disk"), Token: 1}
		if c.Has("wide") {
			fmt.Fprintf(&s.out, "wide %v\n", s.room.Wide())
		}
	case "ahead":
		most, err := strconv.Atoi(c.Word(0))
		if err != nil {
			c.Fatal(err)
		}
		s.next(most)
	case "again":
		all, hottest := AheadAgain(c.Int("items", 0), c.Int("changed", 0)), AheadHot(c.Int("hot", 0), c.Int("fresh", 0))
		fmt.Fprintf(&s.out, "all %v, the hottest %v\n", all, hottest)
	default:
		return false
	}
	return true
}

func (s *scenario) listItems(c *scripttest.Command) {
	var heat []Heat
	s.items, s.lengths = nil, map[string]int{}
	for range c.Int("cached", 0) {
		s.items, heat = append(s.items, "cached"), append(heat, Heat{})
	}
	for _, word := range c.Words {
		parts := strings.Split(word, "*")
		var h Heat
		for i, dst := range []*int64{&h.Asked, &h.Listed} {
			if len(parts) > i+1 {
				n, err := strconv.ParseInt(parts[i+1], 10, 64)
				if err != nil {
					c.Fatal(err)
				}
				*dst = n
			}
		}
		s.items, s.lengths[parts[0]], heat = append(s.items, parts[0]), 10, append(heat, h)
	}
	s.ahead = NewAhead(heat)
}

func space(c *scripttest.Command, key string) (sp Space) {
	if text := c.Text(key, ""); text != "" {
		if _, err := fmt.Sscanf(text, "%d/%d", &sp.Used, &sp.Total); err != nil {
			c.Fatal(err)
		}
	}
	return sp
}

// next prints a step, and takes its room.
func (s *scenario) next(most int) {
	items, step := s.ahead.Step(most, &s.room, func(item int) int { return s.lengths[s.items[item]] })
	for _, item := range items {
		n := int64(s.lengths[s.items[item]])
		if step == AheadKeep {
			s.room.Memory.Used += n
		}
		if s.room.Disk.Total > 0 {
			s.room.Disk.Used += n
		}
		fmt.Fprintf(&s.out, "%s ", s.items[item])
	}
	fmt.Fprintf(&s.out, "%v, %d left", step, s.ahead.Left())
	if n := s.ahead.TooLarge(); n > 0 {
		fmt.Fprintf(&s.out, ", %d too large", n)
	}
	fmt.Fprintln(&s.out)
}
