package cli

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
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

// ServerURL parses the flag --server. A password there would be visible to every user of the machine, and in messages.
func ServerURL(server string) (*url.URL, error) {
	u, err := url.Parse(server)
	if err == nil && u.User != nil || strings.Contains(server, "@") {
		return nil, Usagef("--server: leave user and password out of the address, where other users of this machine can " +
			"see them: give the server's API key with --key-file FILE or in GREBE_API_KEY")
	}
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, Usagef("--server %q is not an address such as http://127.0.0.1:8080", server)
	}
	return u, nil
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

// Unanswered says what can be done about a request that got no answer. err is the error of an http.Client.
func Unanswered(err error) error {
	var bad *tls.CertificateVerificationError
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the server speaks HTTP without TLS: give its address with http:// instead of https://")
	case errors.As(err, &bad):
		return fmt.Errorf("%w (--ca FILE names the authority that signed the server's certificate)", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w (is a server running there? `grebe demo` starts one)", err)
	}
	return err
}

// ServerError is AnswerError. If a key is missing, it also says how to give one.
func ServerError(resp *http.Response, body []byte) error {
	err := AnswerError(resp, body)
	if resp.StatusCode != http.StatusUnauthorized {
		return err
	}
	return fmt.Errorf("%w (on the command line: --key-file FILE, or the variable GREBE_API_KEY)", err)
}

// AnswerError returns the code and the message in the body of an answer that is an error.
func AnswerError(resp *http.Response, body []byte) error {
	var e struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil || e.Error.Message == "" {
		said, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
		return fmt.Errorf("the server says %s %.200q", resp.Status, said)
	}
	return errors.New(cmp.Or(e.Error.Code, resp.Status) + ": " + e.Error.Message)
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
