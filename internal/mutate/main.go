// Mutate measures what tests notice. It changes one operator, constant, error check, lock or statement of a package at
// a time, runs the package's tests, and prints the changes that no test notices.
//
//	go run ./internal/mutate -n 40 ./catalog
//	make mutate PKG=./catalog N=40 SEED=7
//
// Sources are never written: each mutant is an overlay of the go command. The sample depends on the seed and the
// sources alone. A mutant is killed when a test fails or takes far longer than without it; one that does not compile is
// left out and another is drawn. The quick tests run first and the slow ones only when those notice nothing; -with
// names further packages whose tests run when the package's own notice nothing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// options says what is tried.
type options struct {
	pkg     string
	dir     string   // the module's folder; empty: the current one
	with    []string // more packages whose tests may notice
	n       int
	seed    uint64
	race    bool
	run     string  // tests that are run; empty: all
	atLeast float64 // percent
}

// A result is what became of the sample.
type result struct {
	Package   string    `json:"package"`
	Seed      uint64    `json:"seed"`
	Sites     int       `json:"sites"`
	Killed    int       `json:"killed"`
	Survivors []*mutant `json:"-"`
}

func (r *result) tried() int { return r.Killed + len(r.Survivors) }

func (r *result) percent() float64 { return 100 * float64(r.Killed) / float64(max(1, r.tried())) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	r, err := try(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
	if r.percent() < o.atLeast {
		fmt.Fprintf(os.Stderr, "mutate: %.0f %% killed, want at least %.0f %%\n", r.percent(), o.atLeast)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("mutate", flag.ContinueOnError)
	f.IntVar(&o.n, "n", 40, "mutants to try")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())%1e6, "seed of the sample")
	f.BoolVar(&o.race, "race", false, "run the tests under the race detector")
	f.StringVar(&o.run, "run", "", "run only tests that match this pattern")
	f.Float64Var(&o.atLeast, "at-least", 0, "fail below this percentage of killed mutants")
	with := f.String("with", "", "comma-separated packages whose tests run too")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "usage: mutate [flags] PACKAGE\nexample: mutate -n 40 -seed 7 -with ./server ./catalog\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() != 1 || o.n < 1 {
		return o, errors.New("name one package, and at least one mutant; -help lists the flags")
	}
	o.pkg = f.Arg(0)
	if *with != "" {
		o.with = strings.Split(*with, ",")
	}
	return o, nil
}

// try runs the sample and reports each mutant as it ends.
func try(ctx context.Context, o options, w io.Writer) (*result, error) {
	all, err := o.sites(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	t, err := o.measure(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &result{Package: o.pkg, Seed: o.seed, Sites: len(all)}
	fmt.Fprintf(w, "%s: %d places to change, seed %d\n", o.pkg, len(all), o.seed)
	rng := rand.New(rand.NewPCG(o.seed, 1))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all {
		if r.tried() == o.n || ctx.Err() != nil {
			break
		}
		overlay, err := m.overlay(dir)
		if err != nil {
			return nil, err
		}
		outcome := t.try(ctx, overlay)
		switch {
		case ctx.Err() != nil, outcome == broken:
			continue
		case outcome == failed:
			r.Killed++
		default:
			r.Survivors = append(r.Survivors, m)
			fmt.Fprintf(w, "survived  %s:%d  %s: %s\n", filepath.Base(m.file), m.line, m.kind, m.what)
		}
	}
	fmt.Fprintf(w, "%s: %d of %d killed (%.0f %%)\n", o.pkg, r.Killed, r.tried(), r.percent())
	return r, ctx.Err()
}

// sites returns every mutant of the files that are built here.
func (o *options) sites(ctx context.Context) ([]*mutant, error) {
	cmd := o.command(ctx, "list", "-json=Dir,GoFiles", o.pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o.pkg, err)
	}
	var list struct {
		Dir     string
		GoFiles []string
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("list %s: one package at a time: %w", o.pkg, err)
	}
	var all []*mutant
	for _, f := range list.GoFiles {
		path := filepath.Join(list.Dir, f)
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found, err := sites(path, src)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// overlay writes a mutant beside the sources and returns the file that names it to the go command.
func (m *mutant) overlay(dir string) (string, error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(changed, m.apply(src), 0o600); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}
