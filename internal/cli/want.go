package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"grebe/internal/config"
)

// checkFlags checks the flags of a command line by their want tags, before the command begins. A tag is part of the
// error message: "at least 1", "above 0 and at most 1" (bounds: at least, above, at most, below), "one of bf16, f32",
// "a size such as 64MiB" or "a file that can be written". It does not check defaults: an optional flag may have one
// out of bounds.
func checkFlags(cmd *kong.Context) error {
	for _, p := range cmd.Path {
		if p.Flag == nil {
			continue
		}
		want := p.Flag.Tag.Get("want")
		if want == "" {
			continue
		}
		for _, v := range values(p.Flag.Target) {
			if !meets(v, want) {
				return fmt.Errorf("--%s: %v: want %s", p.Flag.Name, v, want)
			}
		}
	}
	return nil
}

// values returns the elements of a list, or else the value itself.
func values(v reflect.Value) []reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		return values(v.Elem())
	case reflect.Slice:
		var out []reflect.Value
		for i := range v.Len() {
			out = append(out, v.Index(i))
		}
		return out
	}
	return []reflect.Value{v}
}

func meets(v reflect.Value, want string) bool {
	if names, ok := strings.CutPrefix(want, "one of "); ok {
		return slices.Contains(strings.Split(names, ", "), v.String())
	}
	if want == "a file that can be written" {
		return writable(v.String())
	}
	if strings.HasPrefix(want, "a size") {
		size, err := config.ParseSize(v.String())
		return err == nil && size.Bytes > 0
	}
	f, ok := asFloat(v)
	if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
		return false
	}
	for bound := range strings.SplitSeq(want, " and ") {
		if !within(f, bound) {
			return false
		}
	}
	return true
}

// writable opens a file for writing before a command computes for hours. It leaves the content unchanged, and does
// not open pipes and the like.
func writable(name string) bool {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return !info.IsDir()
	}
	f, failed := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if failed != nil {
		return false
	}
	f.Close()
	if errors.Is(err, fs.ErrNotExist) {
		return os.Remove(name) == nil
	}
	return true
}

func asFloat(v reflect.Value) (float64, bool) {
	switch {
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}

// within panics if it cannot parse a bound. The tag is then wrong, which the test of all flags finds.
func within(f float64, bound string) bool {
	i := strings.LastIndexByte(bound, ' ')
	limit, err := strconv.ParseFloat(bound[i+1:], 64)
	if err != nil {
		panic(fmt.Sprintf("tag want: %q: %v", bound, err))
	}
	switch bound[:max(i, 0)] {
	case "at least":
		return f >= limit
	case "above":
		return f > limit
	case "at most":
		return f <= limit
	case "below":
		return f < limit
	}
	panic(fmt.Sprintf("tag want: %q is no bound", bound))
}
