// Package rows measures the cache of embedding rows in a GPU's memory: pooled features of many tables, sequences, and
// rows that are fetched from pinned memory of the host, beside the rates of plain copies in the same run.
//
// Before a case is timed, some of its results are compared with sums on the host. Times are the GPU's own, of single
// launches. Rates count the bytes of rows read and of results written, not ids and look-ups.
package rows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute/cuda/driver"
)

// Options say what to measure. Zero values stand for defaults.
type Options struct {
	Bytes    int64  // of all rows of a case; 4 GiB
	Features int    // tables that are pooled; 26
	Requests int    // bags of each; 4096
	Bag      int    // mean length; 20
	Users    int    // sequences; 64
	Events   int    // of each; 15000
	Missing  int    // rows that are fetched; 16384
	RowBytes []int  // 128, 256, 512, 1024
	Repeats  int    // of which medians are reported; 20
	GPU      int    // number of the GPU
	Peers    string // a Python with torch; none: no peers
	Seed     uint64 // of ids; 1
	JSON     bool
}

func (o *Options) setDefaults() {
	for _, v := range []struct {
		to *int
		by int
	}{{&o.Features, 26}, {&o.Requests, 4096}, {&o.Bag, 20}, {&o.Users, 64}, {&o.Events, 15000}, {&o.Missing, 16384},
		{&o.Repeats, 20}} {
		if *v.to == 0 {
			*v.to = v.by
		}
	}
	if o.Bytes == 0 {
		o.Bytes = 4 << 30
	}
	if len(o.RowBytes) == 0 {
		o.RowBytes = []int{128, 256, 512, 1024}
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
}

// Line is a case.
type Line struct {
	Name     string  `json:"name"`
	Format   string  `json:"format"`
	RowBytes int     `json:"row_bytes"`
	Rows     int     `json:"rows"` // read in a launch
	Micros   float64 `json:"us"`
	Rate     float64 `json:"gb_per_s"`
	Of       string  `json:"of"` // the copy that it is compared with
	Share    float64 `json:"share"`
	Must     float64 `json:"must,omitempty"` // the least share
	Peer     float64 `json:"torch_us,omitempty"`
}

// Report is what was measured.
type Report struct {
	Date   time.Time `json:"date"`
	Device string    `json:"device"`
	Copy   float64   `json:"copy_gb_per_s"` // in the GPU's memory, bytes read and written
	PCIe   float64   `json:"pcie_gb_per_s"` // from pinned memory
	Torch  string    `json:"torch,omitempty"`
	Seed   uint64    `json:"seed"`
	Lines  []Line    `json:"lines"`
}

// Run measures and writes a table, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (Report, error) {
	o.setDefaults()
	r := Report{Date: time.Now().UTC(), Seed: o.Seed}
	failed := measure(ctx, &o, &r)
	if failed == nil && o.Peers != "" {
		failed = r.addPeers(ctx, &o)
	}
	if len(r.Lines) > 0 {
		failed = errors.Join(failed, r.write(w, o.JSON))
	}
	if failed != nil {
		return r, fmt.Errorf("bench rows: %w", failed)
	}
	return r, nil
}

func measure(ctx context.Context, o *Options, r *Report) error {
	c, err := driver.New(o.GPU)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.Leave()
	r.Device = c.Info().Name
	if err := r.copies(c, o); err != nil {
		return err
	}
	for _, bf16 := range []bool{true, false} {
		for _, size := range o.RowBytes {
			for _, run := range []func(*bench) error{(*bench).pooled, (*bench).sequences, (*bench).missing} {
				if err := ctx.Err(); err != nil {
					return err
				}
				b := &bench{o: o, c: c, report: r, bf16: bf16, size: size, r: rand.New(rand.NewPCG(o.Seed, uint64(size)))}
				if err := errors.Join(run(b), b.close()); err != nil {
					return fmt.Errorf("rows of %d bytes: %w", size, err)
				}
			}
		}
	}
	return nil
}

// copies measures the rates of plain copies.
func (r *Report) copies(c *driver.Context, o *Options) error {
	b := &bench{o: o, c: c}
	defer b.close()
	const far, near = 256 << 20, 2 << 30
	from, to, host := b.alloc(near), b.alloc(near), b.pinned(far)
	s := b.stream()
	if b.err != nil {
		return b.err
	}
	here, err := b.time(s, func() error { return s.Copy(to, from, near) })
	if err != nil {
		return err
	}
	across, err := b.time(s, func() error { return s.Copy(to, host.Ptr, far) })
	r.Copy, r.PCIe = 2*near/here/1e9, far/across/1e9
	return err
}

func (r *Report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return report.JSON(w, r)
	}
	const head = "%s: copies %.0f GB/s in memory (read and written), %.1f GB/s from pinned memory; seed %d; PyTorch %s\n\n"
	fmt.Fprintf(w, head, r.Device, r.Copy, r.PCIe, r.Seed, cmp.Or(r.Torch, "not run"))
	t := report.Table(w)
	fmt.Fprintln(t, "case\tformat\tbytes a row\trows\tµs\tGB/s\tshare\tof\tmust\t\tPyTorch µs")
	for _, l := range r.Lines {
		must, verdict, peer := "", "", ""
		if l.Must > 0 {
			must, verdict = fmt.Sprintf("%.2f", l.Must), "ok"
			if l.Share < l.Must {
				verdict = "MISSED"
			}
		}
		if l.Peer > 0 {
			peer = fmt.Sprintf("%.1f", l.Peer)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.1f\t%.0f\t%.2f\t%s\t%s\t%s\t%s\n",
			l.Name, l.Format, l.RowBytes, l.Rows, l.Micros, l.Rate, l.Share, l.Of, must, verdict, peer)
	}
	return t.Flush()
}

// add reports a case that moves so many bytes in a number of seconds.
func (b *bench) add(name string, rows int, bytes, seconds float64, of string, must float64) {
	l := Line{Name: name, Format: b.format(), RowBytes: b.size, Rows: rows, Micros: seconds * 1e6,
		Rate: bytes / seconds / 1e9, Of: of, Must: must}
	by := b.report.Copy
	if of == "PCIe" {
		by = b.report.PCIe
	}
	l.Share = l.Rate / by
	b.report.Lines = append(b.report.Lines, l)
}

func (b *bench) format() string {
	if b.bf16 {
		return "bf16"
	}
	return "f32"
}

// time returns the median time of a launch in seconds, by the GPU's clock.
func (b *bench) time(s *driver.Stream, f func() error, before ...func() error) (float64, error) {
	// The launch is in the stream before the fill ahead of it has ended, so that no time of the host counts.
	n := int(min(b.o.Bytes, 512<<20))
	if b.filler == 0 {
		b.filler = b.alloc(n)
	}
	var times []float64
	for i := range b.o.Repeats + 3 {
		for _, g := range before {
			if err := g(); err != nil {
				return 0, err
			}
		}
		begin, end := b.event(), b.event()
		if b.err != nil {
			return 0, b.err
		}
		err := errors.Join(s.Fill(b.filler, 0, n), begin.Record(s), f(), end.Record(s), s.Sync())
		took, since := end.Since(begin)
		if err := errors.Join(err, since, begin.Close(), end.Close()); err != nil {
			return 0, err
		}
		if i >= 3 {
			times = append(times, took.Seconds())
		}
	}
	slices.Sort(times)
	return report.Median(times), nil
}
