package residency

import "time"

// HungAfter is for how long one entry is read before the tier is taken to hang.
const HungAfter = 10 * time.Second

// Hangs reports whether the tier below memory hangs: the longest of the reads under way takes more than HungAfter. Then no other
// is begun, and whoever wants an entry computes it. The tier is asked again when that read ends.
func Hangs(longest time.Duration) bool { return longest > HungAfter }
