package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
)

func BenchmarkPlainTCP(b *testing.B) {
	const n = 1 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := bytes.Repeat([]byte("grebe"), 64*n/5+1)
		for i := 0; ; i++ {
			if _, err := c.Write(buf[i%64*n:][:n]); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	defer c.Close()
	buf := make([]byte, n)
	b.SetBytes(n)
	for b.Loop() {
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetch(b *testing.B) {
	a, err := mtlstest.New()
	if err != nil {
		b.Fatal(err)
	}
	for _, tls := range []bool{false, true} {
		for _, q := range []struct{ size, count int }{{1 << 20, 64}, {64 << 10, 256}, {4 << 10, 1024}, {256, 1024},
			{256, 1}} {
			b.Run(fmt.Sprintf("tls=%v/size=%d/count=%d", tls, q.size, q.count), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 1))
				m := &memory{}
				g := &Get{Space: space}
				for i := range q.count {
					m.put(keyOf(i), &held{pieces: [][]byte{blockOf(r, q.size).bytes()}})
					g.Wants = append(g.Wants, wants(i)...)
				}
				o := ServerOptions{Holder: m}
				if tls {
					id, err := a.Identity(b.TempDir(), "shop", "n1")
					if err != nil {
						b.Fatal(err)
					}
					o.TLS, o.NodeOf = id.Server(), mtls.NodeOf
				}
				n := serve(b, o)
				c := client(b, map[string]string{"n1": n.addr}, func(c *Client) {
					if !tls {
						return
					}
					id, err := a.Identity(b.TempDir(), "shop", "me")
					if err != nil {
						b.Fatal(err)
					}
					c.opt.TLS = id.Client
				})
				buf := [][]byte{make([]byte, q.size)}
				place := func(int, []byte, int64) ([][]byte, error) { return buf, nil }
				b.SetBytes(int64(q.size * q.count))
				b.ReportAllocs()
				for b.Loop() {
					if err := c.Fetch(context.Background(), "n1", g, place); err != nil || g.Wants[0].Status != Hit {
						b.Fatal(err, g.Wants[0].Status)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*q.count), "ns/block")
			})
		}
	}
}
