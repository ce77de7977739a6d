package gemm

import (
	"fmt"
	"sync"

	"github.com/ebitengine/purego"

	"grebe/internal/offheap"
)

// libraries are the peers, opened once for the process.
type libraries struct {
	onednn   *onednn
	openblas *openblas
}

func (l *libraries) peers() []Peer { return []Peer{l.onednn.Peer, l.openblas.Peer} }

// environment is what the libraries read when they load. Their threads spin about as long as those
// of Grebe's team before they sleep, so that nobody disturbs who comes next; Debian's OpenBLAS does
// not know newer CPUs and would choose slow kernels.
var environment = [][2]string{
	{"OPENBLAS_CORETYPE", "SkylakeX"},
	{"OPENBLAS_THREAD_TIMEOUT", "18"}, // 2^18 cycles
	{"GOMP_SPINCOUNT", "10000"},
}

var openLibraries = sync.OnceValue(func() *libraries {
	if err := setEnvironment(); err != nil {
		no := Peer{Absent: err.Error()}
		return &libraries{&onednn{Peer: no}, &openblas{Peer: no}}
	}
	return &libraries{openOneDNN("libdnnl.so.2"), openOpenBLAS("libopenblas.so.0")}
})

// setEnvironment sets variables with C's setenv: libraries ask getenv, which does not see Go's.
func setEnvironment() error {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("open the C library: %w", err)
	}
	var setenv func(name, value string, overwrite int32) int32
	purego.RegisterLibFunc(&setenv, libc, "setenv")
	for _, v := range environment {
		setenv(v[0], v[1], 0)
	}
	return nil
}

// open opens a library and registers functions by name, each a pointer to a function variable.
func open(library string, functions map[string]any) error {
	lib, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	for name, f := range functions {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			return err
		}
		purego.RegisterFunc(f, symbol)
	}
	return nil
}

func (p *Peer) ready() bool { return p.Absent == "" }

// openblas multiplies with cblas_sgemm.
type openblas struct {
	Peer
	setThreads func(n int32)
	sgemm      func(order, transA, transB, m, n, k int32, alpha float32, a *float32, lda int32, b *float32, ldb int32,
		beta float32, c *float32, ldc int32)
}

func openOpenBLAS(library string) *openblas {
	b := &openblas{Peer: Peer{Name: "openblas", Library: library}}
	err := open(library, map[string]any{"openblas_set_num_threads": &b.setThreads, "cblas_sgemm": &b.sgemm})
	if err != nil {
		b.Absent = err.Error()
	}
	return b
}

type blasProduct struct {
	lib *openblas
	d   *data
	m   int
	c   []float32
	mem *offheap.Block
}

func (b *openblas) product(d *data, threads, m int) (contender, error) {
	p := &blasProduct{lib: b, d: d, m: m}
	var err error
	if p.mem, p.c, err = floats(m * d.n); err != nil {
		return nil, err
	}
	b.setThreads(int32(threads))
	return p, nil
}

func (p *blasProduct) name() string { return p.lib.Name }

func (p *blasProduct) run() error {
	const rowMajor, plain, transposed = 101, 111, 112
	m, n, k := int32(p.m), int32(p.d.n), int32(p.d.k)
	p.lib.sgemm(rowMajor, plain, transposed, m, n, k, 1, &p.d.a[0], k, &p.d.w[0], k, 0, &p.c[0], n)
	return nil
}

func (p *blasProduct) out() []float32 { return p.c }
func (p *blasProduct) free()          { p.mem.Free() }
