package guard

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
)

// Certificates are a server's certificate and the authorities of its clients' certificates. Reload can change them
// while the server runs; open connections keep the old ones.
type Certificates struct {
	cert, key, clientCA string
	current             atomic.Pointer[tls.Config]
}

// LoadCertificates reads a certificate chain and its key in PEM. With a file of certificate authorities, clients MUST
// present a certificate that one of them signed.
func LoadCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{cert: cert, key: key, clientCA: clientCA}
	return c, c.Reload()
}

// Reload reads the files again. On an error the old certificates stay.
func (c *Certificates) Reload() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("guard: read the certificate %s and its key: %w", c.cert, err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"h2", "http/1.1"}}
	if c.clientCA != "" {
		data, err := os.ReadFile(c.clientCA)
		if err != nil {
			return fmt.Errorf("guard: read the clients' authorities: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(data) {
			return fmt.Errorf("guard: %s has no certificate", c.clientCA)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.current.Store(cfg)
	return nil
}

// Config returns a TLS configuration that follows Reload.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
	}
}
