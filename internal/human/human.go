// Package human writes amounts for people.
package human

import (
	"fmt"
	"math"
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

// Seconds is a time in seconds, to the millisecond.
func Seconds(d time.Duration) float64 { return Round(d.Seconds(), 3) }

// Round rounds to so many digits behind the point.
func Round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
