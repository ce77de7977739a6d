package schedule

import "slices"

// Heat is what is known of how often requests will name an item.
type Heat struct {
	Asked  int64 // requests that named it
	Listed int64 // times that users' histories list it
}

// Ahead decides which items are computed before a request needs them: the hottest first, while there is room that
// displaces nobody. Hot are items that requests named, then those that histories list, then the first of the catalog.
type Ahead struct {
	order    []int32
	next     int // of order
	items    []int32
	tooLarge int // of the last step
}

// NewAhead returns the decisions for items, which are known by their index.
func NewAhead(heat []Heat) *Ahead {
	a := &Ahead{order: make([]int32, len(heat))}
	for i := range a.order {
		a.order[i] = int32(i)
	}
	slices.SortStableFunc(a.order, func(i, j int32) int {
		switch x, y := heat[i], heat[j]; {
		case x.Asked > y.Asked || x.Asked == y.Asked && x.Listed > y.Listed:
			return -1
		case x == y:
			return 0
		}
		return 1
	})
	return a
}

// Left returns how many items were not looked at.
func (a *Ahead) Left() int { return len(a.order) - a.next }

// Space is memory, or a disk, in bytes. The zero value is none.
type Space struct{ Used, Total int64 }

// AheadRoom is where items that nobody asked for may go.
type AheadRoom struct {
	Memory, Disk Space
	Token        int64 // bytes of a token's KV
}

// AheadStep says what to do next.
type AheadStep uint8

const (
	AheadKeep AheadStep = iota // compute the items and keep them in memory, and on the disk if there is one
	AheadDisk                  // compute the items and keep them on disk alone
	AheadLook                  // these had nothing to compute: look at the next ones
	AheadFull                  // stop: there is no room
	AheadDone                  // stop: there are no more items
)

func (s AheadStep) String() string {
	return [...]string{"keep", "disk", "look", "full", "done"}[s]
}

// aheadLooks is the most items that one step looks at.
const aheadLooks = 64

// TooLarge returns how many items the last step skipped because they are larger than the room for them.
func (a *Ahead) TooLarge() int { return a.tooLarge }

// Step returns the items to compute next: of at most so many tokens together, but at least one. Look returns the tokens
// of an item that have to be computed: none if it is cached or deleted. An item that has no room is skipped if smaller
// ones have some. The items are valid until the next call.
func (a *Ahead) Step(most int, room *AheadRoom, look func(item int) (tokens int)) ([]int32, AheadStep) {
	a.items, a.tooLarge = a.items[:0], 0
	if a.Left() == 0 {
		return nil, AheadDone
	}
	step, sum := AheadLook, 0
	for looks := 0; looks < aheadLooks && a.Left() > 0; looks++ {
		item := a.order[a.next]
		tokens := look(int(item))
		if tokens > 0 {
			if sum > 0 && sum+tokens > most {
				break
			}
			where := room.place(sum + tokens)
			if where == AheadFull && sum == 0 {
				if !room.tooSmallFor(tokens) {
					return nil, AheadFull
				}
				a.tooLarge++
				a.next++
				continue
			}
			if where == AheadFull || sum > 0 && where != step {
				break
			}
			step, sum = where, sum+tokens
			a.items = append(a.items, item)
		}
		a.next++
	}
	return a.items, step
}

// place decides where the KV of so many tokens goes. Half of the memory and an eighth of the disk stay for requests:
// memory of which half is free is never full to HasRoom. An item that goes to disk needs memory while it is computed,
// and an eighth of that stays free, so that it is not Crowded.
func (r *AheadRoom) place(tokens int) AheadStep {
	bytes, disk := int64(tokens)*r.Token, r.Disk.Total > 0
	used := r.Memory.Used + bytes
	switch {
	case disk && r.Disk.Used+bytes > r.Disk.Total-r.Disk.Total/8:
		return AheadFull
	case used <= r.Memory.Total/2:
		return AheadKeep
	case disk && used < r.Memory.Total-r.Memory.Total/8:
		return AheadDisk
	}
	return AheadFull
}

// tooSmallFor reports whether an item without room is to be skipped, because it has no room in empty memory either, or
// because there is room for many smaller ones.
func (r *AheadRoom) tooSmallFor(tokens int) bool {
	empty := AheadRoom{Memory: Space{Total: r.Memory.Total}, Disk: Space{Total: r.Disk.Total}, Token: r.Token}
	return r.Memory.Total > 0 && (empty.place(tokens) == AheadFull || r.Wide())
}

// Wide reports whether there is room for an eighth of the memory, so that it is worth to go on where there was none.
func (r *AheadRoom) Wide() bool {
	return r.Token > 0 && r.place(int(r.Memory.Total/8/r.Token)) != AheadFull
}

// AheadAgain reports whether all items are worth another look: more than 1 in 64 changed since the last one. A cache
// computes fewer by itself.
func AheadAgain(items, changed int) bool { return changed > items/64 }

// AheadHot reports whether the hottest items are worth another look: more than a quarter of them were not among the
// hottest before.
func AheadHot(hot, fresh int) bool { return fresh > hot/4 }
