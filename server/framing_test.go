package server

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
)

const (
	sizedPost   = "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
	chunkedPost = "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
	unclearPost = "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
)

// A request with both lengths is refused with 400 and its connection is closed, even after other requests.
func TestBothLengthsAreRefused(t *testing.T) {
	s := listening(t, newWorld(t))
	good := fmt.Sprintf(sizedPost, len(goodRank), goodRank) + fmt.Sprintf(chunkedPost, len(goodRank), goodRank) +
		"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
	smuggled := "GET /v1/users/u1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for _, both := range []string{
		"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
		"Transfer-Encoding: chunked\r\nX: y\r\nContent-length:4\r\n",
	} {
		for before, ahead := range []string{"", good} {
			conn, err := net.Dial("tcp", s.http.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			text := ahead + fmt.Sprintf(unclearPost, both, len(goodRank), goodRank) + smuggled
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			var got []int
			for {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				got = append(got, resp.StatusCode)
			}
			conn.Close()
			want := []int{400}
			if before == 1 {
				want = []int{200, 200, 200, 400}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%q behind %d others: %v, want %v and nothing after it", both, 3*before, got, want)
			}
		}
	}
}

// framing finds the same requests, and the first unclear one, wherever reads end.
func TestFramingFollowsRequests(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var b strings.Builder
		n := 1 + rng.IntN(6)
		for range n {
			body := strings.Repeat("Content-Length: 9\r\nTransfer-Encoding: x\r\n\r\n", rng.IntN(4))
			switch rng.IntN(4) {
			case 0:
				fmt.Fprintf(&b, sizedPost, len(body), body)
			case 1:
				if body == "" {
					body = " "
				}
				fmt.Fprintf(&b, chunkedPost, len(body), body)
			case 2:
				fmt.Fprintf(&b, "\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("y", rng.IntN(300)))
			default:
				fmt.Fprintf(&b, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: "+
					"A\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\nA: b\r\n\r\n")
			}
		}
		unclear := int64(0)
		if rng.IntN(2) == 0 {
			fmt.Fprintf(&b, unclearPost, "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 1, "x")
			unclear, n = int64(n+1), n+1
		}
		var f framing
		for text := []byte(b.String()); len(text) > 0; {
			k := 1 + rng.IntN(min(len(text), 50))
			f.follow(text[:k])
			text = text[k:]
		}
		if f.requests != int64(n) || f.unclear != unclear {
			t.Fatalf("%d requests, %d unclear; found %d and %d in %q", n, unclear, f.requests, f.unclear, b.String())
		}
	}
}
