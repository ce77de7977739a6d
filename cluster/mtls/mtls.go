// Package mtls authenticates the processes of a cluster to each other.
//
// Every process has a certificate of the cluster's authority. The certificate names the node in a URI among its subject
// alternative names:
//
//	grebe://CLUSTER/NODE
//
// It is a URI and not a DNS name for three reasons. A node's id need not be a valid host name. No wildcard can stand
// for all nodes. And a web server's certificate of the same authority does not make its owner a member. A certificate
// has exactly one such URI; other names in it are ignored. The host names and addresses under which a node is reached
// are not checked, so they may change.
//
// Both sides verify the other: its chain against the authority, the certificate's times, the cluster's name, and on the
// dialling side the node's id. Connections use TLS 1.3 without session tickets, so every connection is verified against
// the authority that is loaded when it is made.
package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Reasons why a certificate is refused.
var (
	ErrExpired   = errors.New("outside its period of validity")
	ErrAuthority = errors.New("not issued by the cluster's authority")
	ErrNode      = errors.New("names another node")
)

const scheme = "grebe"

// Files are names of PEM files.
type Files struct {
	Cert string // this node's certificate, then the intermediate ones if there are any
	Key  string // its private key
	CA   string // certificates of the cluster's authority; several while it is replaced
}

// Identity is this node's certificate and the authority that it trusts. Its methods may be called concurrently.
type Identity struct {
	files         Files
	cluster, node string
	loaded        atomic.Pointer[material]
}

// material is the content of the files.
type material struct {
	cert  tls.Certificate
	roots *x509.CertPool
}

// Load reads the files. It returns an error if other nodes would refuse the certificate, or if the certificate is not
// for the node and the cluster.
func Load(f Files, cluster, node string) (*Identity, error) {
	id := &Identity{files: f, cluster: cluster, node: node}
	if cluster == "" || node == "" || strings.Contains(cluster+node, "/") {
		return nil, fmt.Errorf("mtls: cluster %q and node %q: both need a name without a slash", cluster, node)
	}
	if err := id.Reload(); err != nil {
		return nil, err
	}
	return id, nil
}

// Reload reads the files again. New connections use what was read; open ones stay. After an error the identity is what
// it was.
func (id *Identity) Reload() error {
	m, err := read(id.files)
	if err != nil {
		return fmt.Errorf("mtls: %w", err)
	}
	chain, err := parse(m.cert)
	if err != nil {
		return fmt.Errorf("mtls: certificate in %s: %w", id.files.Cert, err)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := id.verify(m, chain, use, id.node); err != nil {
			return fmt.Errorf("mtls: certificate in %s: %w", id.files.Cert, err)
		}
	}
	id.loaded.Store(m)
	return nil
}

func read(f Files) (*material, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	m := &material{cert: cert, roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authority: %s has no certificate", f.CA)
	}
	return m, nil
}

// parse returns a certificate and the intermediate ones behind it.
func parse(c tls.Certificate) ([]*x509.Certificate, error) {
	out := make([]*x509.Certificate, len(c.Certificate))
	for i, der := range c.Certificate {
		var err error
		if out[i], err = x509.ParseCertificate(der); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Server returns the configuration of the side that accepts connections. It admits all nodes of the cluster.
func (id *Identity) Server() *tls.Config {
	c := config()
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &id.loaded.Load().cert, nil }
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection verifies it, with the authority that is loaded then
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return wrap(id.verify(id.loaded.Load(), s.PeerCertificates, x509.ExtKeyUsageClientAuth, ""))
	}
	return c
}

// Client returns the configuration of the side that connects to a node. Any other node is refused.
func (id *Identity) Client(node string) *tls.Config {
	c := config()
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &id.loaded.Load().cert, nil
	}
	// Package crypto/tls can verify host names only. VerifyConnection verifies the chain and the node instead; it is
	// called in every handshake, and its error ends it.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(s tls.ConnectionState) error {
		return wrap(id.verify(id.loaded.Load(), s.PeerCertificates, x509.ExtKeyUsageServerAuth, node))
	}
	return c
}

func config() *tls.Config {
	return &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true, // small first records help browsers; blocks of KV are large
	}
}

// NodeOf returns the node at the other end of a verified connection.
func NodeOf(s tls.ConnectionState) (string, error) {
	if len(s.PeerCertificates) == 0 {
		return "", errors.New("mtls: the other side has no certificate")
	}
	_, node, err := nameOf(s.PeerCertificates[0])
	return node, wrap(err)
}

// verify checks a chain, and that its first certificate is of the cluster and the node; an empty node stands for any.
func (id *Identity) verify(m *material, chain []*x509.Certificate, use x509.ExtKeyUsage, node string) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: there is none", ErrAuthority)
	}
	leaf, now := chain[0], time.Now()
	options := x509.VerifyOptions{
		Roots: m.roots, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(options); err != nil {
		return refusal(chain, now, err)
	}
	cluster, name, err := nameOf(leaf)
	switch {
	case err != nil:
		return err
	case cluster != id.cluster:
		return fmt.Errorf("%w: it is of cluster %q, want %q", ErrNode, cluster, id.cluster)
	case node != "" && name != node:
		return fmt.Errorf("%w: it is of node %q, want %q", ErrNode, name, node)
	}
	return nil
}

// refusal explains why a chain is not valid.
func refusal(chain []*x509.Certificate, now time.Time, err error) error {
	for _, c := range chain {
		switch {
		case now.After(c.NotAfter):
			return fmt.Errorf("%w: %s expired at %s", ErrExpired, describe(c), c.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(c.NotBefore):
			return fmt.Errorf("%w: %s is valid from %s on", ErrExpired, describe(c), c.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	return fmt.Errorf("%w: %s, issued by %q: %w", ErrAuthority, describe(chain[0]), chain[0].Issuer, err)
}

func describe(c *x509.Certificate) string {
	if _, node, err := nameOf(c); err == nil {
		return fmt.Sprintf("the certificate of node %q", node)
	}
	return fmt.Sprintf("the certificate %q", c.Subject)
}

// nameOf returns the cluster and the node that a certificate names.
func nameOf(c *x509.Certificate) (cluster, node string, err error) {
	var found *url.URL
	for _, u := range c.URIs {
		if u.Scheme != scheme {
			continue
		}
		if found != nil {
			return "", "", fmt.Errorf("%w: several: %s and %s", ErrNode, found, u)
		}
		found = u
	}
	if found == nil {
		return "", "", fmt.Errorf("%w: no URI %s://CLUSTER/NODE among its subject alternative names", ErrNode, scheme)
	}
	node = strings.TrimPrefix(found.Path, "/")
	if found.Host == "" || node == "" || strings.Contains(node, "/") || found.RawQuery != "" || found.Fragment != "" ||
		found.User != nil {
		return "", "", fmt.Errorf("%w: %q is not %s://CLUSTER/NODE", ErrNode, found, scheme)
	}
	return found.Host, node, nil
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mtls: the other side's certificate is refused: %w", err)
}

// Plain returns a configuration to connect with the node's certificate to a server that is no member, such as etcd. The
// server's host name is verified against the authority, as browsers do. The certificate is read again for each
// connection.
func Plain(f Files) (*tls.Config, error) {
	own := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		return &cert, err
	}
	if _, err := own(nil); err != nil {
		return nil, wrap(err)
	}
	data, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, wrap(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, wrap(fmt.Errorf("%s has no certificate", f.CA))
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: own, RootCAs: roots}, nil
}
