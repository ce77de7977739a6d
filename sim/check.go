package sim

import (
	"fmt"

	"grebe/residency"
)

// check verifies what must hold between any two events.
func (f *fleet) check() error {
	if f.sent != f.result.ended+f.open {
		return fmt.Errorf("sim: %d requests were sent, %d ended and %d are on their way", f.sent, f.result.ended, f.open)
	}
	for _, n := range f.nodes {
		for _, s := range []*store{n.users, n.items} {
			if err := s.check(); err != nil {
				return fmt.Errorf("sim: at %v, node %d: %w", f.now, n.id, err)
			}
		}
	}
	return nil
}

func (s *store) check() error {
	for i := range s.mem {
		m := &s.mem[i]
		if m.used < 0 || m.used > m.total {
			return fmt.Errorf("level %d uses %d of %d bytes", i, m.used, m.total)
		}
	}
	return nil
}

// settled verifies what must hold when no request is on its way: nothing is in use, and the books agree with the bytes.
func (f *fleet) settled() error {
	for _, n := range f.nodes {
		if !n.up {
			continue
		}
		if n.waiting != 0 || n.here != 0 || n.batcher.Len() != 0 {
			return fmt.Errorf("sim: node %d: %d calls wait, %d are there", n.id, n.waiting, n.here)
		}
		for _, s := range []*store{n.users, n.items} {
			held := make([]int64, len(s.mem))
			err := s.books.Check(func(h *residency.Held[body]) error {
				held[h.Level()] += h.Bytes
				if h.Value.refs != 1 {
					return fmt.Errorf("an entry is in use by %d calls", h.Value.refs-1)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("sim: node %d: %w", n.id, err)
			}
			for i := range s.mem {
				if held[i] != s.mem[i].used {
					return fmt.Errorf("sim: node %d: level %d holds %d bytes and uses %d", n.id, i, held[i], s.mem[i].used)
				}
			}
		}
	}
	return f.bytes()
}

// bytes verifies that what was sent has arrived, is lost with its receiver, or is on its way.
func (f *fleet) bytes() error {
	var sent, got, under int64
	for i := range f.nodes {
		sent, got = sent+f.net.sent[i], got+f.net.got[i]
	}
	for _, fl := range f.flows.all {
		if fl.live {
			under += fl.bytes
		}
	}
	if sent != got+f.net.lost+under {
		return fmt.Errorf("sim: %d bytes were sent, %d arrived, %d are lost and %d under way", sent, got, f.net.lost, under)
	}
	return nil
}
