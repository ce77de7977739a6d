package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/cluster/mtls/mtlstest"
	"grebe/shop/demo"
)

// startMember starts a node with a certificate of an authority, and returns the folder of its files.
func startMember(t *testing.T, a *mtlstest.Authority, node, coordinator string, set ...string) (*running, string) {
	t.Helper()
	dir := t.TempDir()
	certify(t, a, dir, node)
	args := []string{"serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0", "--admin-listen=", "--grpc-listen=",
		"--data-dir", filepath.Join(dir, "data")}
	free, err := freeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, kv := range append(set, "cache.ahead=off", "cluster.name=shop", "cluster.node="+node, "cluster.coordinator="+coordinator,
		"cluster.listen="+free[0], "cluster.tls.cert="+file("cert.pem"), "cluster.tls.key="+file("key.pem"), "cluster.tls.ca="+file("ca.pem")) {
		args = append(args, "--set", kv)
	}
	return start(t, args...), dir
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

// Members with certificates of one authority meet, also over an etcd that one of them runs. Others can neither reach etcd
// nor join. New certificates are used after SIGHUP; one of another node is refused.
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
	n1, _ := startMember(t, ours, "n1", "embedded", "cluster.etcd="+free[0])
	n2, dir := startMember(t, ours, "n2", "etcd://"+free[0])
	awaitActive(t, n1.http, 2)
	awaitActive(t, n2.http, 2)
	stranger, _ := startMember(t, theirs, "n3", "etcd://"+free[0]) // it serves alone
	certify(t, ours, dir, "n2")
	n2.hangup(t, "configuration read again")
	certify(t, ours, dir, "n1")
	n2.hangup(t, "names another node")
	awaitActive(t, n1.http, 2)
	awaitActive(t, stranger.http, 0)
}
