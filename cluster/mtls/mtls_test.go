package mtls_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func authority(t *testing.T) *mtlstest.Authority {
	t.Helper()
	a, err := mtlstest.New()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func identity(t *testing.T, a *mtlstest.Authority, cluster, node string) *mtls.Identity {
	t.Helper()
	id, err := a.Identity(t.TempDir(), cluster, node)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// meet connects both sides and exchanges a byte each way. It returns what the server saw as the client's node, and both
// errors.
func meet(t *testing.T, server, client *tls.Config) (node string, atServer, atClient error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			atServer = err
			return
		}
		c := tls.Server(raw, server)
		defer c.Close()
		if _, atServer = io.ReadFull(c, make([]byte, 1)); atServer != nil {
			return
		}
		node, atServer = mtls.NodeOf(c.ConnectionState())
		_, _ = c.Write([]byte{1})
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, client)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, atClient = c.Write([]byte{1}); atClient == nil {
		_, atClient = io.ReadFull(c, make([]byte, 1))
	}
	c.Close()
	<-done
	return node, atServer, atClient
}

func TestNodesOfAClusterMeet(t *testing.T) {
	a := authority(t)
	n1, n2 := identity(t, a, "shop", "n1"), identity(t, a, "shop", "rack_7.n2") // no valid host name
	node, atServer, atClient := meet(t, n2.Server(), n1.Client("rack_7.n2"))
	if atServer != nil || atClient != nil || node != "n1" {
		t.Errorf("server saw %q, %v; client %v", node, atServer, atClient)
	}
}

// TestStrangersCanDoNothing: a process without a certificate of the authority gets no byte of data from a member, and
// gives it none.
func TestStrangersCanDoNothing(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	n1, n2 := identity(t, ours, "shop", "n1"), identity(t, ours, "shop", "n2")
	stranger, twin := identity(t, ours, "toys", "n1"), identity(t, theirs, "shop", "n1")
	bare := &tls.Config{InsecureSkipVerify: true}
	old := n1.Client("n2")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		atServer       error // a reason, or nil for any
		atClient       error
	}{
		{"a client without a certificate", n2.Server(), bare, nil, nil},
		{"a client of another authority", n2.Server(), skip(twin.Client("n2")), mtls.ErrAuthority, nil},
		{"a client of another cluster", n2.Server(), skip(stranger.Client("n2")), mtls.ErrNode, nil},
		{"a client with an old TLS", n2.Server(), old, nil, nil},
		{"a server of another authority", twin.Server(), n2.Client("n1"), nil, mtls.ErrAuthority},
		{"a server of another cluster", stranger.Server(), n2.Client("n1"), nil, mtls.ErrNode},
		{"another node of the cluster", n2.Server(), n1.Client("n3"), nil, mtls.ErrNode},
	} {
		_, atServer, atClient := meet(t, c.server, c.client)
		if atServer == nil || atClient == nil {
			t.Errorf("%s: the server says %v, the client %v: both must fail", c.name, atServer, atClient)
		}
		if c.atServer != nil && !errors.Is(atServer, c.atServer) || c.atClient != nil && !errors.Is(atClient, c.atClient) {
			t.Errorf("%s: the server says %v, want %v; the client %v, want %v", c.name, atServer, c.atServer, atClient,
				c.atClient)
		}
	}
}

// skip returns a client that believes every server.
func skip(c *tls.Config) *tls.Config {
	c.VerifyConnection = nil
	return c
}

func TestErrorsNameTheReason(t *testing.T) {
	a, other := authority(t), authority(t)
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		reason error
		text   string
	}{
		{"expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, mtls.ErrExpired,
			"expired at 20"},
		{"too early", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, mtls.ErrExpired,
			"is valid from 20"},
		{"another node", func(c *x509.Certificate) { c.URIs[0].Path = "/n2" }, mtls.ErrNode, `node "n2", want "n1"`},
		{"another cluster", func(c *x509.Certificate) { c.URIs[0].Host = "toys" }, mtls.ErrNode,
			`cluster "toys", want "shop"`},
		{"a DNS name only", func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"n1"} }, mtls.ErrNode,
			"no URI grebe://CLUSTER/NODE"},
		{"two names", func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }, mtls.ErrNode, "several"},
		{"a path", func(c *x509.Certificate) { c.URIs[0].Path = "/n1/x" }, mtls.ErrNode, "is not grebe://CLUSTER/NODE"},
		{"a client's only", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, mtls.ErrAuthority, "usage"},
		{"other URIs beside it", func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "x"}) },
			nil, ""},
	} {
		cert := mtlstest.Template("shop", "n1")
		c.change(cert)
		f, err := a.Write(t.TempDir(), cert)
		if err != nil {
			t.Fatal(err)
		}
		_, err = mtls.Load(f, "shop", "n1")
		if !errors.Is(err, c.reason) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v: …%s…", c.name, err, c.reason, c.text)
		}
	}
	f, err := a.Write(t.TempDir(), mtlstest.Template("shop", "n1"))
	if err != nil {
		t.Fatal(err)
	}
	wrong := f
	if g, err := other.Write(t.TempDir(), mtlstest.Template("shop", "n1")); err != nil {
		t.Fatal(err)
	} else {
		wrong.CA = g.CA
	}
	if _, err := mtls.Load(wrong, "shop", "n1"); !errors.Is(err, mtls.ErrAuthority) {
		t.Errorf("another authority: %v", err)
	}
	for _, bad := range []mtls.Files{{f.Cert, f.Key, "none"}, {"none", f.Key, f.CA}, {f.Cert, f.CA, f.CA},
		{f.Cert, f.Key, f.Key}} {
		if _, err := mtls.Load(bad, "shop", "n1"); err == nil {
			t.Errorf("loaded %v", bad)
		}
	}
	for _, name := range []string{"", "a/b"} {
		if _, err := mtls.Load(f, "shop", name); err == nil {
			t.Errorf("loaded a node %q", name)
		}
	}
}

// TestReload replaces the authority of a pair of nodes without a restart: first both trust the old and the new one,
// then they get new certificates, then they trust only the new one.
func TestReload(t *testing.T) {
	before, after := authority(t), authority(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	var ids []*mtls.Identity
	var files []mtls.Files
	for i, node := range []string{"n1", "n2"} {
		f, err := before.Write(dirs[i], mtlstest.Template("shop", node))
		if err != nil {
			t.Fatal(err)
		}
		id, err := mtls.Load(f, "shop", node)
		if err != nil {
			t.Fatal(err)
		}
		ids, files = append(ids, id), append(files, f)
	}
	server, client := ids[0].Server(), ids[1].Client("n1") // made once: they must follow
	together := func(when string) {
		t.Helper()
		if _, a, b := meet(t, server, client); a != nil || b != nil {
			t.Errorf("%s: %v, %v", when, a, b)
		}
	}
	together("before")
	next := make([]mtls.Files, 2)
	for i, node := range []string{"n1", "n2"} {
		var err error
		if next[i], err = after.Write(t.TempDir(), mtlstest.Template("shop", node)); err != nil {
			t.Fatal(err)
		}
		both := append(content(t, files[i].CA), content(t, next[i].CA)...)
		put(t, files[i].CA, both)
		if err := ids[i].Reload(); err != nil {
			t.Fatal(err)
		}
		together("with both authorities")
	}
	for i := range ids {
		put(t, files[i].Cert, content(t, next[i].Cert))
		if err := ids[i].Reload(); err == nil {
			t.Error("a certificate with another one's key was loaded")
		}
		together("after an error")
		put(t, files[i].Key, content(t, next[i].Key))
		if err := ids[i].Reload(); err != nil {
			t.Fatal(err)
		}
		together("with a new certificate")
	}
	stale := identity(t, before, "shop", "n2")
	for i := range ids {
		put(t, files[i].CA, content(t, next[i].CA))
		if err := ids[i].Reload(); err != nil {
			t.Fatal(err)
		}
		together("with the new authority")
	}
	if _, atServer, _ := meet(t, server, skip(stale.Client("n1"))); !errors.Is(atServer, mtls.ErrAuthority) {
		t.Errorf("a certificate of the old authority: %v", atServer)
	}
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestExpiryWhileRunning: a certificate that expires after it was loaded is refused by others, with the reason.
func TestExpiryWhileRunning(t *testing.T) {
	a := authority(t)
	n1 := identity(t, a, "shop", "n1")
	cert := mtlstest.Template("shop", "n2")
	cert.NotAfter = time.Now().Add(2 * time.Second).Truncate(time.Second)
	f, err := a.Write(t.TempDir(), cert)
	if err != nil {
		t.Fatal(err)
	}
	n2, err := mtls.Load(f, "shop", "n2")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(cert.NotAfter) + 10*time.Millisecond) // the certificate's clock is the real one
	if _, atServer, atClient := meet(t, n1.Server(), n2.Client("n1")); !errors.Is(atServer, mtls.ErrExpired) ||
		atClient == nil {
		t.Errorf("server %v, client %v", atServer, atClient)
	}
	if _, _, atClient := meet(t, n2.Server(), n1.Client("n2")); !errors.Is(atClient, mtls.ErrExpired) {
		t.Errorf("client %v", atClient)
	}
}
