package split

// Load is what a split asks of the GPU: what the busiest block has to do, and what all do.
type Load struct {
	Steps  float64 // of the busiest block
	Units  float64 // tiles or parts of it
	Parts  float64 // parts of it
	Merged float64 // parts of the tile that has the most
	Mean   float64 // steps per block
}

// features are a load's numbers with a constant first.
func (l *Load) features() [features]float64 {
	return [features]float64{1, l.Steps, l.Units, l.Parts, l.Merged, l.Mean}
}

const features = 6

// Costs by which the busiest block is found, in quarters of a step: package attend cuts by about the same.
const (
	stepCost = 4
	unitCost = 6
	partCost = 6
)

// Load returns what a split asks for, and whether it is possible: it must not need more parts than there
// is memory for.
func (w *Work) Load(s Split) (Load, bool) {
	switch s.Form {
	case Whole:
		return w.uncut(), true
	case Balanced:
		return w.balanced(), true
	case Even:
		return w.even(s.Steps)
	}
	whole, cut := w.uncut(), w.balanced()
	if cut.cost()*103 < whole.cost()*100 {
		return cut, true
	}
	return whole, true
}

func (l *Load) cost() float64 {
	return stepCost*l.Steps + unitCost*l.Units + partCost*l.Parts
}

// uncut is the load of whole tiles.
func (w *Work) uncut() Load {
	l, _ := w.even(1 << 20)
	return l
}

// balanced is the load when blocks end together: parts fill what tiles leave.
func (w *Work) balanced() Load {
	tiles, steps, longest := w.Totals()
	if tiles == 0 {
		return Load{}
	}
	mean := float64(steps) / float64(w.Blocks)
	most := max(1, (steps+w.Blocks-1)/w.Blocks)
	merged := (longest + most - 1) / most
	l := Load{Steps: float64(most), Units: 1, Parts: 1, Merged: float64(max(2, merged)), Mean: mean}
	if tiles > w.Blocks {
		l.Units = float64(tiles)/float64(w.Blocks) + 0.5
	}
	if merged > MaxParts { // then the longest tile's parts are what takes the time
		l.Steps, l.Merged = float64((longest+MaxParts-1)/MaxParts), MaxParts
	}
	return l
}

// even is the load when tiles of more than steps steps are cut evenly.
func (w *Work) even(steps int) (Load, bool) {
	l := Load{Merged: 1}
	var units, parts, all, total, end int
	var longest Load // what the unit that takes longest asks for by itself
	round := 0       // of units, one for each block, the long ones first
	for s := len(w.Counts) - 1; s > 0; s-- {
		count := int(w.Counts[s]) * w.Heads
		if count == 0 {
			continue
		}
		n := (s + steps - 1) / steps
		if n > MaxParts {
			return l, false
		}
		size := (s + n - 1) / n
		cost := stepCost*size + unitCost
		if n > 1 {
			cost += partCost
			parts += n * count
			l.Merged = max(l.Merged, float64(n))
		}
		if cost > end {
			longest = Load{Steps: float64(size), Parts: float64(min(n-1, 1))}
			end = cost
		}
		// With one more unit than blocks have in full rounds, some block has one of each round and another.
		for ; round*w.Blocks < units+n*count; round++ {
			end = max(end, (round+1)*cost)
		}
		units += n * count
		all += n * count * size
		total += count * s
	}
	l.Mean = float64(total) / float64(w.Blocks)
	if units == 0 {
		return l, true
	}
	cut := float64(parts) / float64(units)
	whole := stepCost*float64(all) + unitCost*float64(units) + partCost*float64(parts)
	busiest := max(float64(end), whole/float64(w.Blocks))
	if units <= w.Blocks {
		l.Steps, l.Units, l.Parts = longest.Steps, 1, longest.Parts
		return l, parts <= w.Parts
	}
	l.Units = busiest / (whole / float64(units)) // as units of the mean size make it up
	l.Parts = l.Units * cut
	l.Steps = (busiest - unitCost*l.Units - partCost*l.Parts) / stepCost
	return l, parts <= w.Parts
}
