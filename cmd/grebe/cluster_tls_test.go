package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/cluster/mtls/mtlstest"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// memberFlags are those of a node with a certificate of an authority, whose files are in dir.
func memberFlags(t *testing.T, a *mtlstest.Authority, dir, node, coordinator string, set ...string) []string {
	t.Helper()
	certify(t, a, dir, node)
	free, err := freeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0", "--admin-listen=",
		"--grpc-listen=",
		"--data-dir", filepath.Join(dir, "data")}
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, kv := range append(set, "cache.ahead=off", "cluster.name=shop", "cluster.node="+node,
		"cluster.coordinator="+coordinator,
		"cluster.listen="+free[0], "cluster.tls.cert="+file("cert.pem"), "cluster.tls.key="+file("key.pem"),
		"cluster.tls.ca="+file("ca.pem")) {
		args = append(args, "--set", kv)
	}
	return args
}

// examineMember has the doctor look at a node that does not run.
func examineMember(t *testing.T, flags []string) string {
	t.Helper()
	config, errs, code := grebe(t, append(flags, "--print-config")...)
	if code != cli.Done {
		t.Fatalf("exits with %d: %s", code, errs)
	}
	file := filepath.Join(t.TempDir(), "grebe.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, _ := grebe(t, "doctor", "-c", file)
	return out
}

// certify writes a node's certificate, which etcd can use too.
func certify(t *testing.T, a *mtlstest.Authority, dir, node string) {
	t.Helper()
	c := mtlstest.Template("shop", node)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	if _, err := a.Write(dir, c); err != nil {
		t.Fatal(err)
	}
}

// awaitActive waits until a node lists so many active nodes.
func awaitActive(t *testing.T, url string, want int) {
	t.Helper()
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	addr := strings.TrimPrefix(url, "http://")
	for until := late(t); activeNodes(context.Background(), client, addr) != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%s does not list %d active nodes", url, want)
		}
	}
}

// Members with certificates of one authority meet, also over an etcd that one of them runs. Others do not reach etcd.
// New certificates are used after SIGHUP; one of another node is refused.
func TestClusterCertificates(t *testing.T) {
	ours, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	free, err := freeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	etcd, dir := "etcd://"+free[0], t.TempDir()
	n1 := start(t, memberFlags(t, ours, t.TempDir(), "n1", "embedded", "cluster.etcd="+free[0])...)
	n2 := start(t, memberFlags(t, ours, dir, "n2", etcd)...)
	awaitActive(t, n1.http, 2)
	awaitActive(t, n2.http, 2)
	if says := examineMember(t, memberFlags(t, ours, t.TempDir(), "n3", etcd)); !strings.Contains(says,
		"2 nodes are registered") {
		t.Errorf("a member is told\n%s", says)
	}
	if says := examineMember(t, memberFlags(t, theirs, t.TempDir(), "n3", etcd)); !strings.Contains(says,
		"fail  coordinator") {
		t.Errorf("a stranger is told\n%s", says)
	}
	certify(t, ours, dir, "n2")
	n2.hangup(t, "configuration read again")
	certify(t, ours, dir, "n1")
	n2.hangup(t, "names another node")
	awaitActive(t, n1.http, 2)
}
