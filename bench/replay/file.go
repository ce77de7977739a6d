package replay

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
)

// File replays a log, which may be gzipped.
func File(path string) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("replay %s: %w", path, err)
		}
	}
	b := bufio.NewReader(in)
	requests := 0
	if first, err := b.Peek(80); err == nil && first[0] == '#' { // bench/drive says there what it sent
		line, _, _ := strings.Cut(string(first), "\n")
		if _, said, ok := strings.Cut(line, ": "); ok {
			_, _ = fmt.Sscanf(said, "%d requests", &requests) // 0 where the log does not say it
		}
	}
	r, err := Run(b)
	r.Requests = requests
	if err != nil {
		return r, fmt.Errorf("replay %s: %w", path, err)
	}
	return r, nil
}
