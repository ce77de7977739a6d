package placement

import (
	"cmp"
	"math"
	"slices"
)

// tiesPerPart bounds the neighbours that a micro-part remembers.
const tiesPerPart = 16

// link says how strongly a micro-part is tied to another.
type link struct {
	part   uint16
	weight float32
}

// tie returns the strongest ties of each micro-part, by falling weight.
func tie(g *Graph, m *Map) [][]link {
	// Items by micro-part: counting sort.
	start := make([]int32, len(m.parts)+1)
	for _, p := range m.table {
		if p != everywhere {
			start[p+1]++
		}
	}
	for p := range m.parts {
		start[p+1] += start[p]
	}
	items := make([]int32, start[len(m.parts)])
	at := slices.Clone(start)
	for i, p := range m.table {
		if p != everywhere {
			items[at[p]] = int32(i)
			at[p]++
		}
	}
	out := make([][]link, len(m.parts))
	sum := make([]float64, len(m.parts))
	var met []link
	for p := range m.parts {
		met = met[:0]
		for _, i := range items[start[p]:start[p+1]] {
			for e := g.start[i]; e < g.start[i+1]; e++ {
				q := m.table[g.near[e]]
				if q == everywhere || int(q) == p {
					continue
				}
				if sum[q] == 0 {
					met = append(met, link{part: q})
				}
				sum[q] += float64(g.at(e))
			}
		}
		for k, l := range met {
			met[k].weight = float32(min(sum[l.part], math.MaxFloat32))
			sum[l.part] = 0
		}
		slices.SortFunc(met, func(a, b link) int {
			return cmp.Or(cmp.Compare(b.weight, a.weight),
				cmp.Compare(a.part, b.part))
		})
		out[p] = slices.Clone(met[:min(len(met), tiesPerPart)])
	}
	return out
}

// seconds gives every micro-part a second owner by rendezvous, so that the items of a lost node spread over all others.
func (m *Map) seconds() {
	names := m.names()
	for p := range m.parts {
		best := m.choose(p, names)
		m.parts[p].second = best.owner
		if best.owner == m.parts[p].owner {
			m.parts[p].second = best.second
		}
	}
}

// shuffler moves micro-parts of a cut between nodes until every node has as many as its weight asks for.
type shuffler struct {
	m           *Map
	ties        [][]link // of both sides
	quota, have []int
	within      []float32 // [micro-part][node]: weight of the ties to the micro-parts of the node
	to          []int     // micro-part → the node below its quota that it is tied to most; -1: none
}

// shuffle gives the micro-parts of a cut to the members, starting from owners that may have left. Each step takes the
// move that gains the most, or loses the least, of the ties within nodes.
func (m *Map) shuffle() {
	s := &shuffler{m: m, ties: bothSides(m.ties), quota: quotas(m.members, len(m.parts)),
		have:   make([]int, len(m.members)),
		within: make([]float32, len(m.parts)*len(m.members)), to: make([]int, len(m.parts))}
	for p, at := range m.parts {
		s.have[at.owner]++
		for _, l := range s.ties[p] {
			s.row(p)[m.parts[l.part].owner] += l.weight
		}
	}
	for p := range m.parts {
		s.aim(p)
	}
	for s.step() {
	}
	m.seconds()
}

func (s *shuffler) row(p int) []float32 { return s.within[p*len(s.m.members):][:len(s.m.members)] }

// aim finds the best node for a micro-part.
func (s *shuffler) aim(p int) {
	s.to[p] = -1
	row := s.row(p)
	for n := range row {
		if s.have[n] < s.quota[n] && (s.to[p] < 0 || row[n] > row[s.to[p]]) {
			s.to[p] = n
		}
	}
}

// step makes the best move, if one is needed.
func (s *shuffler) step() bool {
	part := -1
	best := float32(math.Inf(-1))
	for p, at := range s.m.parts {
		if to := s.to[p]; to >= 0 && s.have[at.owner] > s.quota[at.owner] {
			if gain := s.row(p)[to] - s.row(p)[at.owner]; gain > best {
				part, best = p, gain
			}
		}
	}
	if part < 0 {
		return false
	}
	from, to := int(s.m.parts[part].owner), s.to[part]
	s.m.parts[part].owner = uint16(to)
	s.have[from]--
	s.have[to]++
	for _, l := range s.ties[part] {
		row := s.row(int(l.part))
		row[from] -= l.weight
		row[to] += l.weight
		s.aim(int(l.part))
	}
	if s.have[to] == s.quota[to] {
		for p := range s.to {
			if s.to[p] == to {
				s.aim(p)
			}
		}
	}
	return true
}

// bothSides returns ties where each is known to both micro-parts. A tie that only one side remembers counts as well.
func bothSides(ties [][]link) [][]link {
	out := make([][]link, len(ties))
	for p := range ties {
		out[p] = slices.Clone(ties[p])
	}
	for p := range ties {
		for _, l := range ties[p] {
			if !slices.ContainsFunc(ties[l.part], func(x link) bool { return int(x.part) == p }) {
				out[l.part] = append(out[l.part], link{uint16(p), l.weight})
			}
		}
	}
	return out
}
