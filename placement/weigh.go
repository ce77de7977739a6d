package placement

// Weigh sets the members' weights by their memory for KV, in bytes. A member whose memory is 0 is of unknown size and
// counts as the mean of the others. The mean of all weights is 1.
func Weigh(members []Member, memory []int64) {
	var sum, known float64
	for _, b := range memory {
		if b > 0 {
			sum += float64(b)
			known++
		}
	}
	for i, b := range memory {
		members[i].Weight = 1
		if b > 0 {
			members[i].Weight = float64(b) / (sum / known)
		}
	}
}

// sameShare is how far a weight may be off, as a factor, before Reweigh changes it.
const sameShare = 1.25

// Reweigh keeps the weights of members that have about the same share as in the map, so that small changes of memory
// move nothing. Weights have another scale than those of the map if nodes came or went: only their ratios count. A
// member with weight 0 keeps its share. Reweigh reports whether all members are those of the map with the same shares.
func (m *Map) Reweigh(members []Member) (same bool) {
	old := make(map[string]float64, len(m.members))
	for _, x := range m.members {
		old[x.Name] = x.Weight
	}
	var before, after float64
	for _, x := range members {
		if w := old[x.Name]; w > 0 && x.Weight > 0 {
			before, after = before+w, after+x.Weight
		}
	}
	scale := 1.0
	if before > 0 {
		scale = after / before
	}
	same = len(members) == len(m.members)
	for i := range members {
		x := &members[i]
		was := old[x.Name] * scale
		switch {
		case was == 0:
			same = false
		case x.Weight == 0 || x.Weight <= was*sameShare && was <= x.Weight*sameShare:
			x.Weight = was
		default:
			same = false
		}
	}
	return same
}
