package product

import (
	"cmp"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

const (
	line    = 128  // bytes of each row of x and W in a buffer
	threads = 384  // of a block: a producer and two consumers of 128
	group   = 4096 // rows of x that the cache holds while W passes by
)

// Share says what the two blocks of a cluster have in common and copy only once.
type Share int

// Shares.
const (
	ShareNone Share = iota // no clusters
	ShareW                 // the blocks have neighbouring rows
	ShareX                 // the blocks have neighbouring columns
)

// Tile is how a product is cut: the part that a block computes at a time.
type Tile struct {
	Rows   int // 128 or 256
	Cols   int // rows of W: a multiple of 8, at most 256, of 16 with ShareW; at most 192 with 256 rows
	Stages int // buffers
	Share  Share
	// Turns lets the two consumers of a block compute whole tiles in turns, so that one's end runs under
	// the other's products. For 128 rows and at most 192 columns.
	Turns bool
}

func (t Tile) String() string {
	turns := map[bool]string{true: " turns", false: ""}
	return fmt.Sprintf("%dx%d/%d%s%s", t.Rows, t.Cols, t.Stages, [...]string{"", " W", " X"}[t.Share], turns[t.Turns])
}

func (t Tile) cluster() int {
	if t.Share == ShareNone {
		return 1
	}
	return 2
}

// down and across are the tiles of a cluster.
func (t Tile) down() int {
	if t.Share == ShareW {
		return 2
	}
	return 1
}

func (t Tile) across() int {
	if t.Share == ShareX {
		return 2
	}
	return 1
}

// xBox and wBox are the rows that one copy brings.
func (t Tile) xBox() int { return t.Rows / t.across() }
func (t Tile) wBox() int { return t.Cols / t.down() }

func (t Tile) stageBytes() int { return (t.Rows + t.Cols) * line }

// shared is the shared memory of a block: the buffers, room to align them to 1,024, and two barriers each.
func (t Tile) shared() int { return 1024 + t.Stages*(t.stageBytes()+16) }

// group is how many tiles below one another go together.
func (t Tile) group() int { return max(1, group/(t.Rows*t.down())) }

func (t Tile) validate(info driver.Info) error {
	wide := t.Cols > 256 || (t.Rows == 256 || t.Turns) && t.Cols > 192 || t.Turns && t.Rows != 128
	step := 8 * t.down()
	if t.Rows != 128 && t.Rows != 256 || t.Cols <= 0 || wide || t.Cols%step != 0 ||
		t.Stages < 2 || t.shared() > info.SharedMemory {
		return fmt.Errorf("product: no tile %v (%d of %d bytes of shared memory)", t, t.shared(), info.SharedMemory)
	}
	return nil
}

// defines are those of gateup.cu.
func (k *key) defines() []string {
	number := map[bool]string{true: "1", false: "0"}
	in, t := map[bool]compute.DType{true: compute.FP8, false: compute.BF16}[k.fp8], &k.tile
	return []string{fmt.Sprintf("IN=%d", in), fmt.Sprintf("BM=%d", t.Rows), fmt.Sprintf("BN=%d", t.Cols),
		fmt.Sprintf("STAGES=%d", t.Stages), fmt.Sprintf("CM=%d", t.down()), fmt.Sprintf("CN=%d", t.across()),
		fmt.Sprintf("GROUP=%d", t.group()), fmt.Sprintf("FORM=%d", k.form),
		"BIAS=" + number[k.bias], "TURNS=" + number[t.Turns]}
}

// cost estimates the cycles of a product of bf16: those of the cluster that has the most to do, whose tiles each take
// the tensor cores' time, or that of the copies, and a start and an end.
func (t Tile) cost(info driver.Info, rows, n, k int) float64 {
	const (
		linesPerCycle = 32   // pairs that the tensor cores multiply, in either format
		bytesPerCycle = 45   // of one multiprocessor, from the cache
		ends          = 1200 // what is not hidden
	)
	clusters := info.Processors / t.cluster()
	o := order{down: up(rows, t.Rows*t.down()), across: up(n, t.Cols*t.across()), group: t.group(), clusters: clusters}
	steps := float64(2 * k / line)
	multiply := float64(t.Rows*t.Cols) / linesPerCycle
	copied := float64((t.xBox()+t.wBox())*line) / bytesPerCycle
	whole := steps * max(multiply, copied)
	if t.Turns {
		return float64(up(o.down*o.across, clusters))*whole + ends
	}
	last := whole
	if rows-(o.down-1)*t.Rows*t.down() <= t.Rows/2 { // one consumer has nothing to do
		last = steps * max(multiply/2, copied)
	}
	return o.longest(whole+ends, last+ends)
}

// order is that in which clusters of blocks take tiles, as Tiles of gateup.cu.
type order struct{ down, across, group, clusters int }

// take returns the row and the column of tile i.
func (o *order) take(i int) (m, n int) {
	g := i / (o.group * o.across)
	r := i - g*o.group*o.across
	high := min(o.group, o.down-g*o.group)
	n = r / high
	return g*o.group + (r-n*high+(n*high+high/2)/o.clusters)%high, n
}

// longest returns the cost of the cluster that has the most to do, where tiles of the last row cost last and others
// whole.
func (o *order) longest(whole, last float64) float64 {
	most, all := 0.0, o.down*o.across
	for c := range min(o.clusters, all) {
		sum := 0.0
		for i := c; i < all; i += o.clusters {
			if m, _ := o.take(i); m == o.down-1 {
				sum += last
			} else {
				sum += whole
			}
		}
		most = max(most, sum)
	}
	return most
}

func up(a, b int) int { return (a + b - 1) / b }

// Tiles returns tiles for the product, the most promising first: a few of each kind. Two columns of FP8 take the time
// of one of bf16.
func (o *Op) Tiles(info driver.Info) []Tile {
	return Tiles(info, o.Most, o.N, o.K*line/2/o.depth())
}

// Tiles returns tiles for a product of bf16, the most promising first: a few of each kind.
func Tiles(info driver.Info, rows, n, k int) []Tile {
	const perKind = 2
	var all []Tile
	for _, kind := range []Tile{{Rows: 128, Share: ShareW}, {Rows: 128, Share: ShareX}, {Rows: 256, Share: ShareX},
		{Rows: 256, Share: ShareW}} {
		all = append(all, kind.best(info, rows, n, k, perKind)...)
	}
	for _, kind := range []Tile{{Rows: 128}, {Rows: 256}, {Rows: 128, Share: ShareW, Turns: true},
		{Rows: 128, Share: ShareX, Turns: true}} {
		all = append(all, kind.best(info, rows, n, k, 1)...)
	}
	slices.SortStableFunc(all, func(a, b Tile) int {
		return cmp.Compare(a.cost(info, rows, n, k),
			b.cost(info, rows, n, k))
	})
	return all
}

// best returns up to limit tiles of t's rows and share.
func (t Tile) best(info driver.Info, rows, n, k, limit int) []Tile {
	var found []Tile
	for cols := 64; cols <= 256; cols += 8 {
		c := t
		c.Cols = cols
		c.Stages = min(6, (info.SharedMemory-1024)/(c.stageBytes()+16))
		if c.validate(info) == nil {
			found = append(found, c)
		}
	}
	slices.SortStableFunc(found, func(a, b Tile) int {
		return cmp.Compare(a.cost(info, rows, n, k), b.cost(info, rows, n, k))
	})
	return found[:min(limit, len(found))]
}
