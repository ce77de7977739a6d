package prose

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// longest is the most words that a sentence of the documents may have.
const longest = 35

// pages returns the project's documents by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	root := "../.."
	add := func(name string) {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(data)
	}
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range top {
		add(filepath.Base(name))
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".md" {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err == nil {
			add(filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found %d pages: are they read right?", len(out))
	}
	return out
}

func TestSentencesAreShort(t *testing.T) {
	for name, page := range pages(t) {
		for _, s := range Sentences(page) {
			if s.Words > longest {
				t.Errorf("%s:%d: %d words, at most %d: %s", name, s.Line, s.Words, longest, s.Text)
			}
		}
	}
}

func TestLinksResolve(t *testing.T) {
	all := pages(t)
	for name, page := range all {
		for _, to := range Links(page) {
			file, part, _ := strings.Cut(to, "#")
			target := name
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
				if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
					t.Errorf("%s: no %s", name, to)
					continue
				}
			}
			if text, ok := all[target]; ok && part != "" && !slices.Contains(anchors(text), part) {
				t.Errorf("%s: %s has no heading for #%s", name, target, part)
			}
		}
	}
}

// anchors returns the names that readers on the web give to a page's headings.
func anchors(page string) []string {
	var out []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		text := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			}
			return -1
		}, text))
	}
	return out
}

func TestPagesAreShort(t *testing.T) {
	all := pages(t)
	for name, most := range map[string]int{"README.md": 120, "ARCHITECTURE.md": 250, "docs/results/README.md": 150} {
		if n := strings.Count(all[name], "\n"); n == 0 || n > most {
			t.Errorf("%s has %d lines, at most %d", name, n, most)
		}
	}
}

// Runs are kept by their date; the page of results links to each.
func TestRunsAreDatedAndLinked(t *testing.T) {
	all, linked := pages(t), map[string]bool{}
	for _, to := range Links(all["docs/results/README.md"]) {
		linked["docs/results/"+to] = true
	}
	runs := 0
	for name := range all {
		base, ok := strings.CutPrefix(name, "docs/results/")
		if !ok || base == "README.md" || base == "quality.md" {
			continue
		}
		runs++
		if _, err := time.Parse(time.DateOnly, base[:min(len(base), len(time.DateOnly))]); err != nil || !linked[name] {
			t.Errorf("%s: its name does not begin with a date, or docs/results/README.md does not link to it (%v)", name, err)
		}
	}
	if runs == 0 {
		t.Error("no runs in docs/results")
	}
}

func TestSentences(t *testing.T) {
	page := "# A heading. Left out\n\nOne `a b c` two. Three [four](x.md) five!\n\n    code is left out\n\n" +
		"| a | table |\n\n- six seven\n  eight\n- nine: ten\n\n```sh\nleft out\n```\nEleven"
	var got []int
	for _, s := range Sentences(page) {
		got = append(got, s.Words)
	}
	if want := []int{3, 3, 3, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("words %v, want %v: %+v", got, want, Sentences(page))
	}
	if got := Links("a [b](c.md#d) `[e](f)` <https://g> [h](https://i)\n"); !slices.Equal(got, []string{"c.md#d"}) {
		t.Errorf("links %v", got)
	}
}
