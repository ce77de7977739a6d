package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/etcd"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", nil, nil)
	return a
}

// sign writes NAME.crt and NAME.key.
func (a *authority) sign(name string, parent *x509.Certificate,
	by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", secret)
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out, key
}

func (a *authority) write(name, kind string, der []byte) {
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// config is a client's, with a certificate of this authority.
func (a *authority) config(name string) *tls.Config {
	a.sign(name, a.cert, a.key)
	pair, err := tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key"))
	if err != nil {
		a.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// Only clients with a certificate of the authority are served.
func TestTLS(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	good, bad := a.config("client"), foreign.config("client")
	bad.RootCAs = good.RootCAs
	none := good.Clone()
	none.Certificates = nil
	a.sign("server", a.cert, a.key)
	s := start(t, Options{Dir: coordtest.Dir(t), Listen: "127.0.0.1:0",
		Cert: a.path("server.crt"), Key: a.path("server.key"), CA: a.path("ca.crt")})
	for name, c := range map[string]struct {
		tls *tls.Config
		ok  bool
	}{
		"a client of the authority": {good, true}, "another authority's": {bad, false},
		"one without a certificate": {none, false}, "plain TCP": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := client(t, etcd.Options{Endpoints: []string{s.Addr()}, Root: "/x/", TLS: c.tls, Timeout: 2 * time.Second})
			_, err := k.Get(t.Context(), "a")
			if c.ok && err != nil || !c.ok && !errors.Is(err, coord.ErrUnavailable) {
				t.Errorf("Get gives %v", err)
			}
		})
	}
}
