package cache

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Formats are those of a user's own trace:
//
//	text     a key per line, any text up to the first space, tab or comma; empty lines and lines that begin with # are
//	         skipped
//	binary   big-endian unsigned integers of 64 bits
//	arc      lines "first count …" of integers: a request for each of count keys from first on
//	mooncake JSON lines with input_length and hash_ids: prompts of blocks of 512 tokens
var Formats = []string{"text", "binary", "arc", "mooncake"}

// openFile reads a user's own trace. Its name is the file's.
func openFile(path, format string) (*trace, error) {
	name := filepath.Base(path)
	var t *trace
	var err error
	switch format {
	case "text":
		t, err = readLines(name, path, oneKey)
	case "arc":
		t, err = readLines(name, path, keyRange)
	case "binary":
		t, err = readKeys(name, path)
	case "mooncake":
		t, err = readPrompts(name, path)
	default:
		return nil, fmt.Errorf("format %q is not one of %q", format, Formats)
	}
	if err != nil {
		return nil, err
	}
	if len(t.keys) == 0 {
		return nil, fmt.Errorf("read %s: no requests", path)
	}
	return t, nil
}

// readLines reads a trace of lines, each of which adds requests.
func readLines(name, path string, add func(*trace, string) error) (*trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, lines := newTrace(name, true), bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := add(t, line); err != nil {
			return nil, fmt.Errorf("read %s: line %d: %w", path, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return t, nil
}

func fields(line string) []string {
	return strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' || c == ',' })
}

func oneKey(t *trace, line string) error {
	all := fields(line)
	if len(all) == 0 {
		return fmt.Errorf("no key in %q", line)
	}
	h := fnv.New64a()
	h.Write([]byte(all[0]))
	t.add(h.Sum64())
	return nil
}

// mostAtOnce is how many requests one line may stand for.
const mostAtOnce = 1 << 20

func keyRange(t *trace, line string) error {
	all := fields(line)
	if len(all) < 2 {
		return fmt.Errorf("%q: want the first key and how many", line)
	}
	first, err := strconv.ParseUint(all[0], 10, 64)
	if err != nil {
		return fmt.Errorf("first key: %w", err)
	}
	n, err := strconv.ParseUint(all[1], 10, 64)
	if err != nil {
		return fmt.Errorf("number of keys: %w", err)
	}
	if n > mostAtOnce {
		return fmt.Errorf("%d keys at once: want at most %d", n, mostAtOnce)
	}
	for i := range n {
		t.add(first + i)
	}
	return nil
}

func knownFormat(format string) bool { return slices.Contains(Formats, format) }
