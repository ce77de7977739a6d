package place

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"grebe/eval"
	"grebe/internal/wire"
)

// Formats of files with requests.
const (
	formatAuto      = "auto"
	formatHistories = "histories"
	formatUsers     = "users"
	formatRequests  = "requests"
)

const maxLine = 16 << 20 // bytes

// trace is the requests of a file. Items are numbered in the order in which they appear.
type trace struct {
	requests [][]int32
	names    []string // of items
	numbers  map[string]int32
	format   string
}

// read reads a file. done is called now and then with the bytes read so far.
func read(ctx context.Context, path, format string, done func(bytes, total int64)) (*trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	t := &trace{numbers: map[string]int32{}, format: format}
	var at int64
	s := bufio.NewScanner(io.LimitReader(f, math.MaxInt64))
	s.Buffer(nil, maxLine)
	n := 1
	for ; s.Scan(); n++ {
		at += int64(len(s.Bytes())) + 1
		if n%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			done(min(at, info.Size()), info.Size())
		}
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := t.add(line); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s: line %d: longer than %d MiB", path, n, maxLine>>20)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(t.requests) == 0 {
		return nil, fmt.Errorf("%s: line %d: the file ends without a request", path, n)
	}
	return t, nil
}

// add reads a line.
func (t *trace) add(line []byte) error {
	if t.format == formatAuto {
		t.format = guess(line)
	}
	items, err := parse(t.format, line)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		return nil // a user without a history
	}
	request := make([]int32, 0, len(items))
	for _, name := range items {
		number, ok := t.numbers[name]
		if !ok {
			if len(t.names) == math.MaxInt32-1 {
				return fmt.Errorf("more than %d items", len(t.names))
			}
			number = int32(len(t.names))
			name = strings.Clone(name) // not the whole line
			t.numbers[name] = number
			t.names = append(t.names, name)
		}
		request = append(request, number)
	}
	t.requests = append(t.requests, request)
	return nil
}

// guess returns the format that a line has.
func guess(line []byte) string {
	if line[0] != '{' {
		return formatHistories
	}
	var keys struct{ Candidates json.RawMessage }
	if json.Unmarshal(line, &keys) == nil && keys.Candidates != nil {
		return formatRequests
	}
	return formatUsers
}

// question is a line of a trace (grebe eval world writes trace.ndjson) or of questions (requests-test.ndjson).
type question struct {
	AtMs int64 `json:"at_ms"`
	eval.Question
}

func parse(format string, line []byte) ([]string, error) {
	switch format {
	case formatHistories:
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			return nil, errors.New("want a user and at least one item")
		}
		return fields[1:], nil
	case formatUsers:
		user, _, err := wire.DecodeUserLine(line)
		if err != nil || user == nil { // a deletion has no user
			return nil, err
		}
		items := user.History
		for _, e := range user.Events {
			if len(user.History) == 0 {
				items = append(items, e.Item)
			}
		}
		return items, nil
	}
	var q question
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one value")
	}
	if len(q.Candidates) == 0 {
		return nil, errors.New("candidates: want at least one")
	}
	return q.Candidates, nil
}

// Histories reads lines of a user and items. Items are numbered in the order in which they appear; their number is
// returned.
func Histories(ctx context.Context, path string) ([][]int32, int, error) {
	t, err := read(ctx, path, formatHistories, func(int64, int64) {})
	if err != nil {
		return nil, 0, err
	}
	return t.requests, len(t.names), nil
}
