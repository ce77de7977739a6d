package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"grebe/internal/config"
)

// Duration is a time such as 200ms or 60s.
type Duration struct{ time.Duration }

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration: write 200ms, 5s or 10m", text)
	}
	d.Duration = v
	return nil
}

// Bytes is an amount of memory such as 150GB.
type Bytes int64

// UnmarshalText parses a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s, err := config.ParseSize(string(text))
	if err != nil || s.Percent > 0 {
		return fmt.Errorf("%q is not a size: write 8GiB, 500MB or 4096 (bytes)", text)
	}
	*b = Bytes(s.Bytes)
	return nil
}

// Bandwidth is a number of bits per second such as 100Gb/s.
type Bandwidth float64

var bits = []struct {
	unit string
	per  float64
}{{"Tb/s", 1e12}, {"Gb/s", 1e9}, {"Mb/s", 1e6}}

// UnmarshalText parses a bandwidth.
func (b *Bandwidth) UnmarshalText(text []byte) error {
	for _, u := range bits {
		if number, ok := strings.CutSuffix(string(text), u.unit); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && v >= 0 {
				*b = Bandwidth(v * u.per)
				return nil
			}
		}
	}
	return fmt.Errorf("%q is not a bandwidth: write 100Gb/s or 500Mb/s", text)
}

// bytes returns the bytes per second.
func (b Bandwidth) bytes() float64 { return float64(b) / 8 }
