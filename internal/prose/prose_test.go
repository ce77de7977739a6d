package prose

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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

// mean is the most words that sentences may have on average: in the README, in all of docs/, in all package comments.
const mean = 20

// TestSentencesAreShort fails for long sentences, and with -v reports how long they are (`make prose`).
func TestSentencesAreShort(t *testing.T) {
	words, sentences := map[string]int{}, map[string]int{}
	count := func(group, name, text string) {
		for _, s := range Sentences(text) {
			words[group] += s.Words
			sentences[group]++
			if s.Words > longest {
				t.Errorf("%s:%d: %d words, at most %d: %s", name, s.Line, s.Words, longest, s.Text)
			}
		}
	}
	for name, page := range pages(t) {
		group, _, _ := strings.Cut(name, "/")
		count(group, name, page)
	}
	for name, text := range comments(t) {
		count("package comments", name, text)
	}
	for _, group := range slices.Sorted(maps.Keys(words)) {
		per := float64(words[group]) / float64(sentences[group])
		t.Logf("%-16s %5d sentences, %.1f words each", group, sentences[group], per)
		if per > mean {
			t.Errorf("sentences of %s have %.1f words on average, at most %d", group, per, mean)
		}
	}
}

// comments returns the packages' doc comments by the path of their file.
func comments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && skipped(name) {
			return cmp.Or(err, fs.SkipDir)
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err == nil && f.Doc != nil && !ast.IsGenerated(f) {
			// A tab begins a block of code, as four blanks do on a page.
			out[strings.TrimPrefix(filepath.ToSlash(name), "../../")] = strings.ReplaceAll(f.Doc.Text(), "\t", "    ")
		}
		return err
	})
	if err != nil || len(out) < 50 {
		t.Fatalf("found %d packages with comments: %v", len(out), err)
	}
	return out
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

// most returns how many lines a page may have, by its kind; 0 is any number. Runs by date and references have no limit.
func most(name string) int {
	switch folder, _ := filepath.Split(name); {
	case name == "README.md" || name == "docs/README.md":
		return 120
	case name == "ARCHITECTURE.md":
		return 250
	case folder == "docs/" || folder == "docs/start/" || folder == "docs/how-to/":
		return 100
	case folder == "docs/explain/" || folder == "docs/results/" && !dated(name):
		return 150
	}
	return 0
}

func TestPagesAreShort(t *testing.T) {
	all := pages(t)
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "docs/results/README.md"} {
		if all[name] == "" {
			t.Errorf("no %s", name)
		}
	}
	for name, page := range all {
		if n := strings.Count(page, "\n"); most(name) > 0 && n > most(name) {
			t.Errorf("%s has %d lines, at most %d", name, n, most(name))
		}
	}
}

// A page that docs/README.md does not link to is found by nobody.
func TestPagesAreListed(t *testing.T) {
	all, linked := pages(t), map[string]bool{}
	for _, to := range Links(all["docs/README.md"]) {
		linked[filepath.ToSlash(filepath.Join("docs", to))] = true
	}
	for name := range all {
		if strings.HasPrefix(name, "docs/") && name != "docs/README.md" && !linked[name] && !dated(name) {
			t.Errorf("docs/README.md does not link to %s", name)
		}
	}
}

// named is a page that code, messages and scripts name by its path.
var named = regexp.MustCompile(`\bdocs/[\w/-]+\.(md|svg|png)\b`)

func TestNamedPagesExist(t *testing.T) {
	found := 0
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && skipped(name) {
			return cmp.Or(err, fs.SkipDir)
		}
		switch filepath.Ext(name) {
		case ".go", ".md", ".yaml", ".json", ".service", ".py", ".tpl":
		default:
			return nil
		}
		data, err := os.ReadFile(name)
		for _, page := range named.FindAllString(string(data), -1) {
			found++
			if _, err := os.Stat(filepath.Join("../..", page)); err != nil {
				t.Errorf("%s names %s, which does not exist", name, page)
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("found %d pages that files name: %v", found, err)
	}
}

// skipped says whether a folder is no source of this module.
func skipped(folder string) bool {
	if base := filepath.Base(folder); base == ".git" || base == "bin" {
		return true
	}
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil && folder != "../.."
}

// dated says whether a page is a run that is kept by its date.
func dated(name string) bool {
	base := filepath.Base(name)
	_, err := time.Parse(time.DateOnly, base[:min(len(base), len(time.DateOnly))])
	return err == nil
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
		if !dated(name) || !linked[name] {
			t.Errorf("%s: its name does not begin with a date, or docs/results/README.md does not link to it", name)
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
	links := Links("a [b](c.md#d) `[e](f)` <https://g> [h](https://i) [j\n  k](l)\n")
	if want := []string{"c.md#d", "l"}; !slices.Equal(links, want) {
		t.Errorf("links %v, want %v", links, want)
	}
}
