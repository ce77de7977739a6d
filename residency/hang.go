package residency

import "time"

// HungAfter is the duration of one read after which the disk counts as hung.
const HungAfter = 10 * time.Second

// Hangs reports whether the disk is hung: the longest read under way has taken more than HungAfter. Then no other read
// starts, and requests compute their KV instead. Reads start again when the long one ends.
func Hangs(longest time.Duration) bool { return longest > HungAfter }
