// Package peer measures how fast blocks of KV move between two nodes, beside plain TCP.
//
// Both nodes are in this process and talk over the loopback. Plain TCP sends the same bytes from the same memory into
// the same memory, also on request. Windows of all kinds take turns, so that a busy machine disturbs all of them.
package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"grebe/bench/report"
	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
	"grebe/cluster/peer"
	"grebe/plan"
)

// Options of a run. Zero values mean the default.
type Options struct {
	Block  int           // bytes of a block; 1 MiB
	Blocks int           // of a GET; 64
	Window time.Duration // 250 ms
	Rounds int           // windows of each kind; 15
	JSON   bool
}

func (o *Options) setDefaults() {
	if o.Block == 0 {
		o.Block = 1 << 20
	}
	if o.Blocks == 0 {
		o.Blocks = 64
	}
	if o.Window == 0 {
		o.Window = 250 * time.Millisecond
	}
	if o.Rounds == 0 {
		o.Rounds = 15
	}
}

// leastRatio is the bar: the rate of a fetch without TLS, as a share of plain TCP's.
const leastRatio = .7

// small is the size of the block in a small GET.
const small = 1 << 10

// Rate is that of moving large blocks.
type Rate struct {
	Name  string  `json:"name"`
	GBps  float64 `json:"gb_per_s"`     // median of the windows
	Ratio float64 `json:"ratio"`        // to plain TCP in the window beside it, median
	Low   float64 `json:"ratio_low"`    // 95 % interval of the median
	High  float64 `json:"ratio_high"`   //
	CPU   float64 `json:"cpu_s_per_gb"` // of both sides together, median
}

// Latency is that of a request for one small block, in microseconds.
type Latency struct {
	Name string  `json:"name"`
	Gets int     `json:"gets"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
}

// Report is what a run found.
type Report struct {
	Block   int       `json:"block_bytes"`
	Blocks  int       `json:"blocks"`
	Rates   []Rate    `json:"rates"`
	Small   []Latency `json:"small_gets"`
	Passed  bool      `json:"passed"`
	samples map[string]*samples
}

// samples are those of one kind of link, one per window.
type samples struct {
	rate, cpu []float64
	times     []time.Duration
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	dir, err := os.MkdirTemp("", "grebe-peer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := &Report{Block: o.Block, Blocks: o.Blocks, samples: map[string]*samples{}}
	if err := r.measure(ctx, &o, dir); err != nil {
		return nil, fmt.Errorf("bench peer: %w", err)
	}
	r.judge()
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

// link moves blocks from one side to the other.
type link struct {
	name  string
	whole func(ctx context.Context) error // moves all blocks
	small func(ctx context.Context) error // moves one small block
}

const plainName = "plain TCP"

func (r *Report) measure(ctx context.Context, o *Options, dir string) error {
	from, to := memory(o), memory(o)
	links, stop, err := connect(from, to, dir)
	if err != nil {
		return err
	}
	defer stop()
	for round := range o.Rounds + 1 { // the first is for warming up
		for i := range links {
			l := &links[(i+round)%len(links)]
			s := r.samples[l.name]
			if s == nil || round == 0 {
				s = &samples{}
				r.samples[l.name] = s
			}
			if err := s.window(ctx, o, l); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			if round == 0 {
				*s = samples{}
			}
		}
	}
	for i := range links {
		r.add(links[i].name)
	}
	return nil
}

// memory makes the blocks of one side.
func memory(o *Options) [][]byte {
	out := make([][]byte, o.Blocks)
	for i := range out {
		out[i] = make([]byte, o.Block)
		for k := range out[i] {
			out[i][k] = byte(i + k + k>>8)
		}
	}
	return out
}

// window moves all blocks again and again, and then asks for small ones.
func (s *samples) window(ctx context.Context, o *Options, l *link) error {
	began, used, n := time.Now(), cpuSeconds(), 0
	for time.Since(began) < o.Window {
		if err := l.whole(ctx); err != nil {
			return err
		}
		n++
	}
	gb := float64(n) * float64(o.Block) * float64(o.Blocks) / 1e9
	s.rate, s.cpu = append(s.rate, gb/time.Since(began).Seconds()), append(s.cpu, (cpuSeconds()-used)/gb)
	if l.small == nil {
		return ctx.Err()
	}
	for began = time.Now(); time.Since(began) < o.Window/4; {
		start := time.Now()
		if err := l.small(ctx); err != nil {
			return err
		}
		s.times = append(s.times, time.Since(start))
	}
	return ctx.Err()
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// add sums up the samples of a kind.
func (r *Report) add(name string) {
	s, plain := r.samples[name], r.samples[plainName]
	ratios := report.Ratios(s.rate, plain.rate)
	low, high := report.Interval(ratios)
	r.Rates = append(r.Rates, Rate{name, report.Median(s.rate), report.Median(ratios), low, high, report.Median(s.cpu)})
	if len(s.times) > 0 {
		slices.Sort(s.times)
		us := func(percent int) float64 {
			return float64(report.Percentile(s.times, percent)) / float64(time.Microsecond)
		}
		r.Small = append(r.Small, Latency{name, len(s.times), us(50), us(99)})
	}
}

// judge compares fetches without TLS with the bar, also those whose checksums are not known.
func (r *Report) judge() {
	r.Passed = true
	for _, x := range r.Rates {
		if x.Name == fetchName || x.Name == sumName {
			r.Passed = r.Passed && x.Ratio >= leastRatio
		}
	}
}

func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "%d blocks of %d bytes per GET, over the loopback\n\n", r.Blocks, r.Block)
	t := report.Table(w)
	fmt.Fprintln(t, "\tGB/s\t× plain TCP\t95 % interval\tCPU s/GB\t")
	for _, x := range r.Rates {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f–%.2f\t%.2f\t\n", x.Name, x.GBps, x.Ratio, x.Low, x.High, x.CPU)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nOne block of %d bytes\n\n", small)
	fmt.Fprintln(t, "\tgets\tP50 µs\tP99 µs\t")
	for _, x := range r.Small {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t\n", x.Name, x.Gets, x.P50, x.P99)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "FAIL"
	if r.Passed {
		verdict = "pass"
	}
	_, err := fmt.Fprintf(w, "\n%s: without TLS at least %g × the rate of plain TCP\n", verdict, leastRatio)
	return err
}

// Names of links.
const (
	fetchName = "fetch"
	sumName   = "fetch, first time"
	tlsName   = "fetch with TLS"
)

// connect makes all links between two memories.
func connect(from, to [][]byte, dir string) (links []link, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	plain, end, err := plainTCP(from, to)
	if err != nil {
		return nil, nil, err
	}
	links, stops = append(links, plain), append(stops, end)
	for _, name := range []string{fetchName, sumName, tlsName} {
		var l link
		if l, end, err = fetches(name, from, to, dir); err != nil {
			return nil, nil, err
		}
		links, stops = append(links, l), append(stops, end)
	}
	return links, stop, nil
}

// plainTCP sends blocks when it is asked to: a byte 0 asks for all blocks, a byte 1 for a small one.
func plainTCP(from, to [][]byte) (link, func(), error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return link{}, nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return link{}, nil, err
	}
	s, err := l.Accept()
	if err != nil {
		c.Close()
		return link{}, nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { answer(s, from) })
	stop := func() {
		c.Close()
		s.Close()
		wg.Wait()
	}
	piece := make([]byte, small)
	return link{
		name: plainName,
		whole: func(context.Context) error {
			_, err := c.Write([]byte{0})
			for _, b := range to {
				if err == nil {
					_, err = io.ReadFull(c, b)
				}
			}
			return err
		},
		small: func(context.Context) error {
			if _, err := c.Write([]byte{1}); err != nil {
				return err
			}
			_, err := io.ReadFull(c, piece)
			return err
		},
	}, stop, nil
}

func answer(c net.Conn, from [][]byte) {
	ask, piece := make([]byte, 1), make([]byte, small)
	for {
		if _, err := io.ReadFull(c, ask); err != nil {
			return // closed
		}
		if ask[0] == 1 {
			if _, err := c.Write(piece); err != nil {
				return
			}
			continue
		}
		for _, b := range from {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// holder holds the blocks of one side: block i under the key i, and a small one behind them.
type holder struct {
	blocks [][]byte
	sums   []uint32
	known  bool // it remembers checksums
	mu     sync.Mutex
}

func keyOf(i int) plan.Key { return plan.Key{byte(i), byte(i >> 8)} }

func (h *holder) Read(_ context.Context, _ *peer.Space, w *peer.Want, b *peer.Block) peer.Status {
	i := int(w.Key[0]) | int(w.Key[1])<<8
	b.Pieces, b.Ref = append(b.Pieces, h.blocks[i]), h
	if h.known {
		h.mu.Lock()
		b.Sum, b.Summed = h.sums[i], h.sums[i] != 0
		h.mu.Unlock()
		b.Meta = append(b.Meta, w.Key[:2]...)
	}
	return peer.Hit
}

func (h *holder) Release(b *peer.Block) {
	if h.known && b.Summed {
		i := int(b.Meta[0]) | int(b.Meta[1])<<8
		h.mu.Lock()
		h.sums[i] = b.Sum
		h.mu.Unlock()
	}
}

// fetches connects a client and a server.
func fetches(name string, from, to [][]byte, dir string) (l link, stop func(), err error) {
	so := peer.ServerOptions{Node: "a", Epoch: func(uint64) bool { return true }}
	so.Holder = &holder{blocks: append(slices.Clone(from), make([]byte, small)), sums: make([]uint32, len(from)+1),
		known: name != sumName}
	co := peer.Options{Node: "b"}
	if name == tlsName {
		authority, err := mtlstest.New()
		if err != nil {
			return l, nil, err
		}
		a, err := authority.Identity(dir, "bench", so.Node)
		if err != nil {
			return l, nil, err
		}
		b, err := authority.Identity(dir, "bench", co.Node)
		if err != nil {
			return l, nil, err
		}
		so.TLS, so.NodeOf, co.TLS = a.Server(), mtls.NodeOf, b.Client
	}
	s, err := peer.NewServer(so)
	if err != nil {
		return l, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return l, nil, err
	}
	c, err := peer.NewClient(co)
	if err != nil {
		listener.Close()
		return l, nil, err
	}
	c.SetPeers(map[string]string{so.Node: listener.Addr().String()})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(ctx, listener) }) // a fetch fails if it cannot serve
	stop = func() {
		c.Close()
		cancel()
		wg.Wait()
	}
	get := func(keys ...int) func(context.Context) error {
		g := &peer.Get{Wants: make([]peer.Want, len(keys))}
		for i, k := range keys {
			g.Wants[i].Key = keyOf(k)
		}
		pieces := [][]byte{nil}
		piece := make([]byte, small)
		place := func(i int, _ []byte, n int64) ([][]byte, error) {
			if pieces[0] = piece; n != small || len(keys) > 1 {
				pieces[0] = to[i]
			}
			return pieces, nil
		}
		return func(ctx context.Context) error {
			if err := c.Fetch(ctx, so.Node, g, place); err != nil {
				return err
			}
			for i := range g.Wants {
				if s := g.Wants[i].Status; s != peer.Hit {
					return errors.New(s.String())
				}
			}
			return nil
		}
	}
	all := make([]int, len(from))
	for i := range all {
		all[i] = i
	}
	l = link{name: name, whole: get(all...)}
	if name != sumName {
		l.small = get(len(from))
	}
	return l, stop, nil
}
