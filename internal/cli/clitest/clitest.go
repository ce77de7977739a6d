// Package clitest tries the flags of commands.
package clitest

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"grebe/internal/cli"
)

// Senseless gives each flag of commands values that its tag refuses: each is refused before anything begins. needed
// has, by command, what its line takes to be whole otherwise. At least so many values are tried.
func Senseless(t *testing.T, name string, commands func() any, needed map[string][]string, least int) {
	t.Helper()
	parser := cli.Parser(name, "", commands(), &cli.World{})
	tried := 0
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		command := strings.TrimPrefix(n.Path(), name+" ")
		for _, f := range n.Flags {
			bad := senseless(f)
			if f.Tag.Get("want") != "" && bad == nil {
				t.Errorf("%s --%s: nothing meets the tag %q", command, f.Name, f.Tag.Get("want"))
			}
			if bad == nil && numeric(f.Target.Type()) && f.Name != "seed" && f.Name != "first-key" && f.Enum == "" {
				t.Errorf("%s --%s has no tag want", command, f.Name)
			}
			for _, value := range bad {
				tried++
				args := append(strings.Fields(command), needed[command]...)
				var out bytes.Buffer
				code := cli.Run(name, "", commands(), append(args, fmt.Sprintf("--%s=%s", f.Name, value)),
					&cli.World{Ctx: t.Context(), Stdout: &out, Stderr: &out})
				if code != cli.Misuse || !strings.Contains(out.String(), "--"+f.Name+": ") ||
					!strings.Contains(out.String(), ": want ") {
					t.Errorf("%s --%s=%s: exit code %d, %q", command, f.Name, value, code, out.String())
				}
			}
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(parser.Model.Node)
	if tried < least {
		t.Errorf("%d values of flags tried: are tags no longer found?", tried)
	}
}

// senseless returns values that a flag's tag refuses.
func senseless(f *kong.Flag) []string {
	want := f.Tag.Get("want")
	switch {
	case want == "":
		return nil
	case strings.HasPrefix(want, "one of "):
		return []string{"sideways"}
	case want == "a file that can be written":
		return []string{"/nowhere/to/be/found", "/"}
	case strings.HasPrefix(want, "a size"):
		return []string{"much", "0", "50%"}
	case !numeric(f.Target.Type()):
		return nil // meets refuses every value of such a tag
	}
	var out []string
	if element(f.Target.Type()).Kind() == reflect.Float64 || element(f.Target.Type()).Kind() == reflect.Float32 {
		out = append(out, "NaN", "Inf", "-Inf")
	}
	for bound := range strings.SplitSeq(want, " and ") {
		i := strings.LastIndexByte(bound, ' ')
		by := map[string]float64{"at least": -1, "above": 0, "at most": 1, "below": 0}[bound[:i]]
		var limit float64
		fmt.Sscan(bound[i+1:], &limit)
		value := fmt.Sprint(int64(math.Floor(limit + by)))
		if element(f.Target.Type()).String() == "time.Duration" {
			value += "s"
		}
		out = append(out, value)
	}
	return out
}

// element is the type of one value of a flag.
func element(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func numeric(t reflect.Type) bool {
	return element(t).Kind() >= reflect.Int && element(t).Kind() <= reflect.Float64
}
