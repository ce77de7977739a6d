package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
)

// While nothing is loaded, the listeners for HTTP, gRPC and both on one port say so. A client that connects while the
// lobby closes is answered by the server.
func TestLobby(t *testing.T) {
	var l Listeners
	for _, ln := range []*net.Listener{&l.HTTP, &l.GRPC, &l.Admin} {
		var err error
		if *ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	b := OpenLobby(l, nil)
	b.Say("loading model x, 40 %")
	c := client(t)
	for _, at := range []net.Listener{l.HTTP, l.Admin} {
		for _, path := range []string{"/v2/health/live", "/livez"} {
			if status, _, text := get(t, c, "http://"+at.Addr().String()+path); status != http.StatusOK ||
				!strings.Contains(text, `"live":true`) {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		for _, path := range []string{"/v2/health/ready", "/readyz", "/v1/rank", "/metrics", "/"} {
			status, h, text := get(t, c, "http://"+at.Addr().String()+path)
			var e struct {
				Error struct{ Code, Message string }
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil || status != http.StatusServiceUnavailable ||
				h.Get("Retry-After") == "" ||
				e.Error.Code != "unavailable" || e.Error.Message != "loading model x, 40 %" {
				t.Errorf("%s: %d %s %v", path, status, text, err)
			}
		}
	}
	for _, at := range []net.Listener{l.GRPC, l.HTTP} {
		conn, err := grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = grebev1.NewGrebeClient(conn).Rank(t.Context(), &grebev1.RankRequest{})
		if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "loading model x, 40 %" {
			t.Errorf("gRPC: %v", err)
		}
		if at != l.GRPC {
			continue
		}
		state, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || state.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of gRPC: %v %v", state, err)
		}
	}
	b.Leave()
	waiting, err := net.Dial("tcp", l.HTTP.Addr().String()) // between the lobby and the server
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	w := newWorld(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, l) }()
	if _, err := io.WriteString(waiting, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(waiting); err != nil || !strings.Contains(string(text), "200 OK") {
		t.Errorf("who waited is told %s, %v", text, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func get(t *testing.T, c *http.Client, url string) (int, http.Header, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}
