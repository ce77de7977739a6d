package server

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
)

// asked sends a request with a Host and headers, and returns the status.
func asked(t *testing.T, c *http.Client, ln net.Listener, method, path, host string, headers ...string) int {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+ln.Addr().String()+path, strings.NewReader(`{"text": "planted"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A page that points its own host name at this machine can read and write nothing, on any listener (DNS rebinding).
func TestForeignHostsAreRefusedWithoutKeys(t *testing.T) {
	s := listening(t, newWorld(t, func(c *setup) { c.Hosts = []string{"Shop.Example"} }))
	h1, h2 := client(t), &http.Client{Transport: cleartextHTTP2(t)}
	for _, c := range []*http.Client{h1, h2} {
		for _, path := range []string{"/", "/v1/items/i1", "/v1/users/u1", "/metrics", "/v1/hot", "/openapi.json",
			"/nowhere"} {
			for _, host := range []string{"evil.example", "evil.example:8080", "127.0.0.1.evil.example",
				"localhost.evil.example", "10.9.8.7", "shop.example.evil"} {
				if got := asked(t, c, s.http, "GET", path, host); got != http.StatusForbidden {
					t.Errorf("GET %s for the host %s: %d, want 403", path, host, got)
				}
			}
		}
		for _, host := range []string{"127.0.0.1:1", "localhost", "LOCALHOST:80", "grebe.localhost", "[::1]:80",
			"shop.example", "shop.example:443", "127.8.8.8"} {
			if got := asked(t, c, s.http, "GET", "/v1/items/i1", host); got != http.StatusOK {
				t.Errorf("the host %s: %d, want 200", host, got)
			}
		}
		if got := asked(t, c, s.http, "GET", "/readyz", "10.9.8.7"); got != http.StatusOK {
			t.Errorf("health for any host: %d, want 200", got)
		}
	}
	for _, path := range []string{"/debug/pprof/heap", "/debug/pprof/cmdline", "/metrics", "/v1/models/id:reload",
		"/v1/cluster",
		"/v1/cluster/nodes/n1:drain"} {
		method := "GET"
		if strings.HasPrefix(path, "/v1") {
			method = "POST"
		}
		if got := asked(t, h1, s.admin, method, path, "evil.example"); got != http.StatusForbidden {
			t.Errorf("admin: %s %s for a foreign host: %d, want 403", method, path, got)
		}
	}
	if got := asked(t, h1, s.admin, "GET", "/metrics", "localhost:8081"); got != http.StatusOK {
		t.Errorf("admin: metrics by name: %d, want 200", got)
	}
}

// A page of another site cannot write, whatever a browser lets it send without a preflight.
func TestCrossSiteWritesAreRefusedWithoutKeys(t *testing.T) {
	s := listening(t, newWorld(t, func(c *setup) { c.Hosts = []string{"tools.example"} }))
	c := client(t)
	own := s.http.Addr().String()
	cases := []struct {
		name    string
		headers []string
		want    bool // it is allowed
	}{
		{"no browser", nil, true},
		{"own page", []string{"Origin", "http://" + own, "Sec-Fetch-Site", "same-origin"}, true},
		{"own page, old browser", []string{"Origin", "http://" + own}, true},
		{"typed address", []string{"Sec-Fetch-Site", "none"}, true},
		{"configured page", []string{"Origin", "https://tools.example", "Sec-Fetch-Site", "cross-site"}, true},
		{"foreign page", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"}, false},
		{"foreign page, old browser", []string{"Origin", "https://evil.example"}, false},
		{"another port", []string{"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"}, false},
		{"sandboxed frame", []string{"Origin", "null"}, false},
		{"foreign page without origin", []string{"Sec-Fetch-Site", "cross-site"}, false},
		{"foreign form", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode",
			"navigate"}, false},
	}
	for _, k := range cases {
		for _, w := range []struct {
			ln           net.Listener
			method, path string
		}{{s.http, "PUT", "/v1/items/planted"}, {s.http, "DELETE", "/v1/users/u9"}, {s.http, "POST", "/v1/items:batch"},
			{s.admin, "POST", "/v1/models/id:reload"}} {
			headers := k.headers
			if w.ln == s.admin && len(headers) > 1 && headers[1] == "http://"+own {
				headers = append([]string{"Origin", "http://" + s.admin.Addr().String()}, headers[2:]...)
			}
			got := asked(t, c, w.ln, w.method, w.path, "", headers...)
			if (got != http.StatusForbidden) != k.want {
				t.Errorf("%s: %s %s: %d, let in should be %v", k.name, w.method, w.path, got, k.want)
			}
		}
	}
	if _, there := s.Catalog().User("u1"); !there {
		t.Error("user u1 is gone")
	}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}
	if got := asked(t, c, s.http, "GET", "/", "", link...); got != http.StatusOK {
		t.Errorf("a link to the dashboard: %d, want 200", got)
	}
	if got := asked(t, c, s.admin, "GET", "/debug/pprof/profile?seconds=600", "", link...); got != http.StatusForbidden {
		t.Errorf("a link to a profile: %d, want 403", got)
	}
}

// Pages have no keys. With keys, hosts are checked only on listeners that need no key.
func TestHostsWithKeys(t *testing.T) {
	s, keys := guardedWorld(t)
	c := client(t)
	if got := asked(t, c, s.http, "GET", "/v1/items/i1", "grebe.example", "Authorization",
		"Bearer "+keys["writes"]); got != http.StatusOK {
		t.Errorf("with a key: %d, want 200", got)
	}
	if got := asked(t, c, s.admin, "GET", "/debug/pprof/heap", "grebe.example"); got != http.StatusForbidden {
		t.Errorf("admin, which asks for no key: %d, want 403", got)
	}
}

// gRPC refuses what the HTTP API refuses, on both ports.
func TestForeignCallsOfGRPCAreRefused(t *testing.T) {
	s := listening(t, newWorld(t))
	for name, ln := range map[string]net.Listener{"alone": s.grpc, "shared": s.http} {
		rank := func(authority string, md ...string) error {
			conn := dial(t, ln.Addr().String(), grpc.WithAuthority(authority))
			ctx := metadata.AppendToOutgoingContext(context.Background(), md...)
			_, err := grebev1.NewGrebeClient(conn).Rank(ctx, rankRequest)
			return err
		}
		if err := rank("localhost"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := rank("evil.example"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: a foreign authority: %v, want permission denied", name, err)
		}
		if err := rank("localhost", "origin", "https://evil.example"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: a foreign page: %v, want permission denied", name, err)
		}
	}
}

// cleartextHTTP2 speaks HTTP/2 without TLS.
func cleartextHTTP2(t *testing.T) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}
