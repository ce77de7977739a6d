package gemm

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu/internal/team"
)

// BenchmarkPack reports the processor's seconds per GB of bf16 weights, which other programs do not change much.
func BenchmarkPack(b *testing.B) {
	tm := team.New(1)
	defer tm.Close()
	w := random(rand.New(rand.NewPCG(1, 1)), 4864, 896, 1).tensor(compute.BF16)
	for _, dt := range []compute.DType{compute.BF16, compute.INT8} {
		b.Run(dt.String(), func(b *testing.B) {
			start := userSeconds(b)
			for range b.N {
				p, err := Pack(tm, Best(), dt, w)
				if err != nil {
					b.Fatal(err)
				}
				p.Free()
			}
			b.ReportMetric((userSeconds(b)-start)/float64(b.N)/float64(len(w.Data))*1e9, "s/GB")
		})
	}
}

func userSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec) + float64(u.Utime.Usec)/1e6
}
