package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
	"grebe/server/guard"
)

// guardedWorld is a world with keys for the roles serve, catalog and admin.
func guardedWorld(t *testing.T) (s *serving, keys map[string]string) {
	keys = map[string]string{"nobody": "", "stranger": "grebe_no"}
	var list []guard.Key
	for name, role := range map[string]guard.Role{"asks": guard.Serve, "writes": guard.Catalog, "rules": guard.Admin} {
		key, digest := guard.NewKey()
		keys[name] = key
		list = append(list, guard.Key{Name: name, SHA256: digest, Roles: []guard.Role{role}})
	}
	key, digest := guard.NewKey()
	keys["hurries"] = key
	list = append(list, guard.Key{Name: "hurries", SHA256: digest, Roles: []guard.Role{guard.Serve}, Rate: 0.001,
		Burst: 1})
	g, err := guard.New(list)
	if err != nil {
		t.Fatal(err)
	}
	return listening(t, newWorld(t, func(c *setup) { c.Guard = g })), keys
}

func TestWhoMayDoWhat(t *testing.T) {
	s, keys := guardedWorld(t)
	c := client(t)
	const ok, who, no = http.StatusOK, http.StatusUnauthorized, http.StatusForbidden
	for _, want := range []struct {
		method, path, body string
		by                 map[string]int
	}{
		{"POST", "/v1/rank", goodRank, map[string]int{"nobody": who, "stranger": who, "asks": ok, "writes": no, "rules": ok}},
		{"GET", "/v1/models", "", map[string]int{"nobody": who, "asks": ok, "writes": no, "rules": ok}},
		{"GET", "/v1/items/i1", "", map[string]int{"nobody": who, "asks": no, "writes": ok, "rules": ok}},
		{"DELETE", "/v1/users/u1", "", map[string]int{"nobody": who, "stranger": who, "asks": no}},
		{"POST", "/v1/users/u1/events", "{}", map[string]int{"nobody": who, "asks": no}},
		{"POST", "/v1/items:batch", "", map[string]int{"nobody": who, "asks": no}},
		{"POST", "/v1/catalog:rollback", "{}", map[string]int{"nobody": who, "asks": no}},
		{"GET", "/metrics", "", map[string]int{"nobody": who, "asks": no, "writes": no, "rules": ok}},
		{"GET", "/v2/health/ready", "", map[string]int{"nobody": ok}},
		{"GET", "/", "", map[string]int{"nobody": ok}},
	} {
		for name, status := range want.by {
			for _, header := range []string{"Authorization", "X-API-Key"} {
				req, err := http.NewRequest(want.method, s.url(want.path), strings.NewReader(want.body))
				if err != nil {
					t.Fatal(err)
				}
				if header == "Authorization" {
					req.Header.Set(header, "Bearer "+keys[name])
				} else {
					req.Header.Set(header, keys[name])
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != status {
					t.Errorf("%s %s by one who %s (%s): %d, want %d", want.method, want.path, name, header, resp.StatusCode, status)
				}
			}
		}
	}
}

// Every route except the page and health needs a role, so a new route cannot lack one.
func TestEveryRouteHasARole(t *testing.T) {
	for path, rt := range routes {
		if free := rt.op == "page" || rt.op == "openapi" || rt.op == "health"; (rt.role == "") != free {
			t.Errorf("%s has the role %q", path, rt.role)
		}
	}
	for path, rt := range routesByID {
		if rt.role == "" {
			t.Errorf("%s has no role", path)
		}
	}
	if eventsRoute.role == "" {
		t.Error("events have no role")
	}
}

func TestTooOftenSaysWhenToComeBack(t *testing.T) {
	s, keys := guardedWorld(t)
	c := client(t)
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		req, err := http.NewRequest("POST", s.url("/v1/rank"), strings.NewReader(goodRank))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+keys["hurries"])
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Fatalf("request %d: %d, want %d", i, resp.StatusCode, want)
		}
		if after := resp.Header.Get("Retry-After"); want != http.StatusOK && len(after) < 3 {
			t.Errorf("Retry-After is %q seconds at one request in 1000 s", after)
		}
	}
}

func TestKeysOverGRPC(t *testing.T) {
	s, keys := guardedWorld(t)
	for _, addr := range []string{s.http.Addr().String(), s.grpc.Addr().String()} {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		api := grebev1.NewGrebeClient(conn)
		for name, want := range map[string]codes.Code{"nobody": codes.Unauthenticated, "stranger": codes.Unauthenticated,
			"writes": codes.PermissionDenied, "asks": codes.OK, "rules": codes.OK} {
			ctx := context.Background()
			if keys[name] != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+keys[name])
			}
			if _, err := api.ListModels(ctx, &grebev1.ListModelsRequest{}); status.Code(err) != want {
				t.Errorf("on %s, one who %s: %v, want %v", addr, name, err, want)
			}
		}
	}
}

// The guard knows every method of the service. An unknown one would be open to everyone.
func TestEveryMethodIsGuarded(t *testing.T) {
	for _, m := range grebev1.Grebe_ServiceDesc.Methods {
		if grpcOps["/"+grebev1.Grebe_ServiceDesc.ServiceName+"/"+m.MethodName] == "" {
			t.Errorf("%s has no operation", m.MethodName)
		}
	}
}
