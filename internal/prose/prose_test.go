package prose

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// longest is the most words that a sentence of the documents may have.
const longest = 35

// unread are pages whose sentences were not yet rewritten. A page leaves this list and never comes back.
var unread = []string{"docs/blend.md", "docs/decisions.md", "docs/performance.md"}

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
	all := pages(t)
	for _, name := range unread {
		if _, ok := all[name]; !ok {
			t.Errorf("%s is listed as unread and does not exist", name)
		}
	}
	for name, page := range all {
		if slices.Contains(unread, name) {
			continue
		}
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

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(pages(t)["README.md"], "\n"); n > 120 {
		t.Errorf("README.md has %d lines, at most 120", n)
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
