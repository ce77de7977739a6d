// Package feature reports which kernels this CPU can run.
package feature

import (
	"fmt"
	"strings"
)

// Level is a set of instructions that kernels are written for. A level includes those below it.
type Level uint8

const (
	Plain  Level = iota // portable Go
	AVX2                // AVX2, FMA and F16C
	AVX512              // AVX-512 F, BW, DQ, VL, and BMI2
	AMX                 // AVX-512 and its bf16 conversions, AMX tiles with bf16
)

var names = [...]string{"plain", "avx2", "avx512", "amx"}

func (l Level) String() string { return names[l] }

// Parse reads a level's name.
func Parse(s string) (Level, error) {
	for i, n := range names {
		if s == n {
			return Level(i), nil
		}
	}
	return 0, fmt.Errorf("no CPU level %q: want one of %s", s, strings.Join(names[:], ", "))
}

// Best returns the highest level that this machine can run.
func Best() Level { return best() }

// VNNI reports whether kernels of the level AVX512 may sum products of bytes (AVX-512 VNNI).
func VNNI() bool { return Best() >= AVX512 && vnni() }

// Int8Tiles reports whether kernels of the level AMX may multiply tiles of bytes (AMX-INT8).
func Int8Tiles() bool { return Best() >= AMX && int8Tiles() }
