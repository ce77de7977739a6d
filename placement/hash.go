package placement

import "math"

const golden = 0x9e3779b97f4a7c15

// scramble is the output function of splitmix64.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// mix hashes a number.
func mix(x uint64) uint64 { return scramble(x + golden) }

// hashed maps an item to one of n micro-parts.
func hashed(item int32, n int) int { return int(mix(uint64(uint32(item))) >> 32 * uint64(n) >> 32) }

// named hashes a member's name (FNV-1a, then mixed).
func named(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// rendezvous gives every micro-part to the member with the highest score, and the second place to the next. A member
// with twice the weight wins twice as often, and a change of one member moves only what it wins or had won.
func (m *Map) rendezvous() {
	names := m.names()
	for p := range m.parts {
		m.parts[p] = m.choose(p, names)
	}
}

// names returns the hashes of the members' names.
func (m *Map) names() []uint64 {
	out := make([]uint64, len(m.members))
	for i, x := range m.members {
		out[i] = named(x.Name)
	}
	return out
}

func (m *Map) choose(p int, names []uint64) part {
	owner, second := -1, -1
	best, next := math.Inf(-1), math.Inf(-1)
	for i, x := range m.members {
		if x.Weight == 0 {
			continue
		}
		s := score(p, names[i], x.Weight)
		switch {
		case owner < 0 || s > best:
			owner, second, best, next = i, owner, s, best
		case second < 0 || s > next:
			second, next = i, s
		}
	}
	if second < 0 {
		second = owner
	}
	return part{uint16(owner), uint16(second)}
}

// score is the weight over an exponential variable that depends on micro-part and member only.
func score(p int, name uint64, weight float64) float64 {
	u := (float64(mix(name^mix(uint64(p)))>>11) + 0.5) / (1 << 53)
	return weight / -math.Log(u)
}
