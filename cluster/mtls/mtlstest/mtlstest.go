// Package mtlstest makes authorities and certificates for tests and benchmarks.
package mtlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"grebe/cluster/mtls"
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority.
func New() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "a test's authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, key}, err
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // it never returns an error
	return n
}

// Template returns a certificate as a node has it, to be changed and given to Write.
func Template(cluster, node string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "grebe", Host: cluster, Path: "/" + node}},
	}
}

// Write signs a certificate and writes it, its key and the authority's certificate to files in dir.
func (a *Authority) Write(dir string, t *x509.Certificate) (mtls.Files, error) {
	f := mtls.Files{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"),
		CA: filepath.Join(dir, "ca.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return f, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return f, err
	}
	for _, p := range []struct {
		name, kind string
		der        []byte
	}{{f.Cert, "CERTIFICATE", der}, {f.Key, "PRIVATE KEY", secret}, {f.CA, "CERTIFICATE", a.cert.Raw}} {
		if err := os.WriteFile(p.name, pem.EncodeToMemory(&pem.Block{Type: p.kind, Bytes: p.der}), 0o600); err != nil {
			return f, err
		}
	}
	return f, nil
}

// Identity makes a node's certificate in a new folder below dir and loads it.
func (a *Authority) Identity(dir, cluster, node string) (*mtls.Identity, error) {
	dir, err := os.MkdirTemp(dir, "certificate-")
	if err != nil {
		return nil, err
	}
	f, err := a.Write(dir, Template(cluster, node))
	if err != nil {
		return nil, fmt.Errorf("mtlstest: certificate of %s: %w", node, err)
	}
	return mtls.Load(f, cluster, node)
}
