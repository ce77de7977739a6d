package place

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"grebe/placement"
)

// metis cuts the items of a graph that are not everywhere with gpmetis, and returns their parts; -1: everywhere.
func metis(ctx context.Context, program string, g *placement.Graph, m *placement.Map, scale float64) ([]int, error) {
	dir, err := os.MkdirTemp("", "grebe-metis-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "graph")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	cold, err := writeMetis(f, g, m, scale)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, program, "-ufactor=30", "-seed=1", name,
		strconv.Itoa(m.Nodes())).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	data, err := os.ReadFile(fmt.Sprintf("%s.part.%d", name, m.Nodes()))
	if err != nil {
		return nil, err
	}
	lines := strings.Fields(string(data))
	if len(lines) != len(cold) {
		return nil, fmt.Errorf("%s: parts of %d items, want %d", program, len(lines), len(cold))
	}
	of := make([]int, g.Items())
	for i := range of {
		of[i] = -1
	}
	for k, line := range lines {
		if of[cold[k]], err = strconv.Atoi(line); err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
	}
	return of, nil
}

// writeMetis writes the graph in METIS's format: a line of items and edges, then each item's neighbours and weights.
// Several edges between two items become one. Weights are multiplied by scale and rounded, to at least 1. It returns
// the items that are in the file: METIS numbers them from 1.
func writeMetis(out io.Writer, g *placement.Graph, m *placement.Map, scale float64) ([]int32, error) {
	var cold []int32
	number := make([]int32, g.Items())
	for i := range int32(g.Items()) {
		if _, _, all := m.Place(i); !all {
			cold = append(cold, i)
			number[i] = int32(len(cold))
		}
	}
	sum := make([]float64, g.Items())
	var met []int32
	near := func(i int32) {
		for _, o := range met {
			sum[o] = 0
		}
		met = met[:0]
		g.Near(i, func(o int32, w float32) {
			if number[o] == 0 {
				return
			}
			if sum[o] == 0 {
				met = append(met, o)
			}
			sum[o] += float64(w)
		})
		slices.Sort(met)
	}
	edges := 0
	for _, i := range cold {
		near(i)
		edges += len(met)
	}
	b := bufio.NewWriterSize(out, 1<<20)
	fmt.Fprintf(b, "%d %d 001\n", len(cold), edges/2)
	for _, i := range cold {
		near(i)
		for _, o := range met {
			fmt.Fprintf(b, "%d %d ", number[o], max(int(sum[o]*scale+0.5), 1))
		}
		b.WriteByte('\n')
	}
	return cold, b.Flush()
}

// Cut is how a graph was cut.
type Cut struct {
	By      string  `json:"by"`
	Cut     float64 `json:"cut"`     // share of the weight between parts
	Largest float64 `json:"largest"` // part, by the mean
	Seconds float64 `json:"seconds"`
}

// measure measures a cut; -1: the item is everywhere and does not count.
func measure(g *placement.Graph, of []int, nodes int) Cut {
	var cut, all, items float64
	size := make([]float64, nodes)
	for i, p := range of {
		if p < 0 {
			continue
		}
		items++
		size[p]++
		g.Near(int32(i), func(o int32, w float32) {
			if of[o] < 0 {
				return
			}
			all += float64(w)
			if of[o] != p {
				cut += float64(w)
			}
		})
	}
	return Cut{Cut: cut / max(all, 1e-300), Largest: slices.Max(size) * float64(nodes) / max(items, 1)}
}

// owners returns the owner of each item; -1: everywhere.
func owners(m *placement.Map) []int {
	of := make([]int, m.Items())
	for i := range of {
		owner, _, all := m.Place(int32(i))
		if of[i] = owner; all {
			of[i] = -1
		}
	}
	return of
}
