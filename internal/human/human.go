// Package human writes amounts for people.
package human

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Bytes writes an amount of memory.
func Bytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Count writes a number of things, such as "1 item" or "2 items". one names a single thing.
func Count[N ~int | ~int64](n N, one string) string {
	if n != 1 {
		if stem, ok := strings.CutSuffix(one, "y"); ok {
			one = stem + "ies"
		} else {
			one += "s"
		}
	}
	return fmt.Sprintf("%d %s", n, one)
}

// Are is Count with the verb after it: "1 item is", "2 items are".
func Are[N ~int | ~int64](n N, one string) string {
	if n == 1 {
		return Count(n, one) + " is"
	}
	return Count(n, one) + " are"
}

// Seconds is a time in seconds, to the millisecond.
func Seconds(d time.Duration) float64 { return Round(d.Seconds(), 3) }

// Round rounds to so many digits behind the point.
func Round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
