package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"strings"
	"time"
)

// AccessFlags are the credentials of a client command. A key is never a flag, because other users of the machine can
// see command lines.
type AccessFlags struct {
	KeyFile string `type:"path" help:"File with the API key; default: the variable GREBE_API_KEY." placeholder:"FILE"`
	CA      string `name:"ca" type:"path" placeholder:"FILE"`
	Cert    string `type:"path" help:"PEM file of the client certificate; its key is in --cert-key." placeholder:"FILE"`
	CertKey string `type:"path" help:"PEM file of that certificate's key." placeholder:"FILE"`
}

// FlagHelp has the help texts that are too long for tags.
func (AccessFlags) FlagHelp() Texts {
	return Texts{
		"ca": "PEM file of the CA certificates that the server's certificate is checked against.",
	}
}

// Client returns an HTTP client that sends the key, if there is one.
func (a *AccessFlags) Client(w *World, timeout time.Duration) (*http.Client, error) {
	key, err := a.key(w)
	if err != nil {
		return nil, err
	}
	secure, err := a.secure()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = secure
	// do not send the key to another host
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Timeout: timeout, Transport: &keyed{next: transport, key: key}, CheckRedirect: stay}, nil
}

func (a *AccessFlags) key(w *World) (string, error) {
	if a.KeyFile != "" {
		data, err := os.ReadFile(a.KeyFile)
		if err != nil {
			return "", Usagef("--key-file: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
	for _, kv := range w.Env {
		if key, ok := strings.CutPrefix(kv, "GREBE_API_KEY="); ok {
			return key, nil
		}
	}
	return "", nil
}

// secure returns the TLS configuration of the flags; nil: the system's.
func (a *AccessFlags) secure() (*tls.Config, error) {
	if a.CA == "" && a.Cert == "" && a.CertKey == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CA != "" {
		data, err := os.ReadFile(a.CA)
		if err != nil {
			return nil, Usagef("--ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(data) {
			return nil, Usagef("--ca: %s has no certificate", a.CA)
		}
	}
	if a.Cert != "" || a.CertKey != "" {
		pair, err := tls.LoadX509KeyPair(a.Cert, a.CertKey)
		if err != nil {
			return nil, Usagef("--cert and --cert-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// keyed sends a key with every request.
type keyed struct {
	next *http.Transport
	key  string
}

// RoundTrip implements http.RoundTripper.
func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	if k.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+k.key)
	}
	return k.next.RoundTrip(r)
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work.
func (k *keyed) CloseIdleConnections() { k.next.CloseIdleConnections() }
