package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const sample = `package sample

import (
	"errors"
	"sync"
)

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(by int) error {
	if by < 1 {
		return errors.New("too few")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += by
	if err := c.check(); err != nil {
		return err
	}
	return nil
}

func (c *counter) check() error {
	if c.n > 100 {
		return errors.New("too many")
	}
	return nil
}
`

// Each kind of fault is found, once, where it stands.
func TestSites(t *testing.T) {
	all, err := sites("sample.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, fmt.Sprintf("%d %s: %s", m.line, m.kind, m.what))
	}
	want := []string{
		"17 lock: do not lock c.mu",
		"14 operator: by < 1 → <=",
		"14 constant: 1 → 2",
		`15 error: return errors.New("too few") → nil`,
		"19 statement: drop c.n += by",
		"20 error: ignore err != nil",
		"21 error: return err → nil",
		"27 operator: c.n > 100 → >=",
		"27 constant: 100 → 101",
		`28 error: return errors.New("too many") → nil`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A mutant differs from its source where it says and keeps the lines.
func TestApply(t *testing.T) {
	all, err := sites("sample.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		changed := string(m.apply([]byte(sample)))
		if changed == sample {
			t.Errorf("%s: nothing changed", m.what)
		}
		if a, b := strings.Count(changed, "\n"), strings.Count(sample, "\n"); a != b {
			t.Errorf("%s: %d lines, want %d", m.what, a, b)
		}
	}
	if got := string(all[0].apply([]byte(sample))); strings.Contains(got, "Lock()") {
		t.Errorf("the lock is still taken:\n%s", got)
	}
}

// Tests that look at one of two results kill the mutants of that one alone.
func TestTry(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module sample\n\ngo 1.26\n")
	write(t, dir, "sample.go", "package sample\n\nfunc tested(a, b int) int { return a - b }\n\nfunc untested(a, b int) "+
		"int { return a + b }\n")
	write(t, dir, "sample_test.go", `package sample

import "testing"

func TestTested(t *testing.T) {
	if tested(3, 1) != 2 {
		t.Fatal("3 - 1 is 2")
	}
	_ = untested
}
`)
	var out strings.Builder
	r, err := try(context.Background(), options{pkg: ".", dir: dir, n: 10, seed: 1}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if r.Killed != 1 || len(r.Survivors) != 1 || r.Survivors[0].line != 5 {
		t.Errorf("killed %d, survivors %d, want one each, the survivor in line 5:\n%s", r.Killed, len(r.Survivors), &out)
	}
}

// Tests that take long run after the others, and alone.
func TestQuick(t *testing.T) {
	log := "=== RUN   TestA\n--- PASS: TestA (3.00s)\n    --- PASS: TestA/sub (2.50s)\n--- PASS: TestB (0.50s)\n" +
		"--- SKIP: TestC (0.00s)\n--- PASS: ExampleD (0.00s)\n--- PASS: TestE (0.60s)\nPASS\n"
	if got, want := quick(log), "^(ExampleD|TestB)$"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := quick("--- PASS: TestA (0.00s)\n--- PASS: TestB (0.00s)\nPASS\n"); got != "" {
		t.Errorf("got %s, want all tests at once", got)
	}
}

// A mutant is noticed by slow tests and by those of other packages too, and one that never ends is noticed.
func TestTryNotices(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module sample\n\ngo 1.26\n")
	write(t, dir, "sample.go", `package sample

func Sum(a, b int) int {
	s := 0
	for a != 0 {
		a--
		s++
	}
	return s + b
}
`)
	write(t, dir, "sample_test.go", `package sample

import "testing"

func TestNothing(t *testing.T) {}

func TestOneAndNone(t *testing.T) {
	if Sum(1, 0) != 1 {
		t.Fatal("1 + 0 is 1")
	}
}
`)
	if err := os.Mkdir(filepath.Join(dir, "user"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "user/user_test.go", `package user

import (
	"testing"

	"sample"
)

func TestSum(t *testing.T) {
	if sample.Sum(1, 2) != 3 {
		t.Fatal("1 + 2 is 3")
	}
}
`)
	o := options{pkg: ".", dir: dir}
	all, err := o.sites(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	for _, c := range []struct {
		what  string
		with  []string
		limit time.Duration
		want  int
	}{
		{"drop s++", nil, time.Minute, failed},
		{"s + b → -", nil, time.Minute, passed},
		{"s + b → -", []string{"./user"}, time.Minute, failed},
		{"drop a--", nil, 500 * time.Millisecond, failed}, // never ends
	} {
		i := slices.IndexFunc(all, func(m *mutant) bool { return m.what == c.what })
		if i < 0 {
			t.Fatalf("no mutant %q", c.what)
		}
		overlay, err := all[i].overlay(temp)
		if err != nil {
			t.Fatal(err)
		}
		o.with = c.with
		ts := &tests{options: &o, folder: dir, binary: filepath.Join(temp, "x.test"), quick: "^(TestNothing)$"}
		ts.limit, ts.others = c.limit, time.Minute
		if got := ts.try(t.Context(), overlay); got != c.want {
			t.Errorf("%s, with %v: %d, want %d", c.what, c.with, got, c.want)
		}
	}
}

// Tests that fail by themselves say nothing about mutants.
func TestTryRefusesFailingTests(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "go.mod", "module sample\n\ngo 1.26\n")
	write(t, dir, "sample.go", "package sample\n\nconst one = 1\n")
	write(t, dir, "sample_test.go", "package sample\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { "+
		"t.Fatal(one) }\n")
	if _, err := try(context.Background(), options{pkg: ".", dir: dir, n: 1, seed: 1}, new(strings.Builder)); err == nil {
		t.Error("no error")
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
