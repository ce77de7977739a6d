package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/app"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newSecret(t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newSecret(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) write(name, kind string, der []byte) string {
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

// sign makes a certificate for this machine and returns the files of it and its key.
func (a *authority) sign(name string, serial int64) (cert, key string) {
	secret := newSecret(a.t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &secret.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	sec, err := x509.MarshalECPrivateKey(secret)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "EC PRIVATE KEY", sec)
}

// A server with TLS, client certificates and keys lets in who has both, and follows a SIGHUP.
func TestKeysAndCertificates(t *testing.T) {
	ca := newAuthority(t, "shop authority")
	cert, certKey := ca.sign("server", 2)
	mine, mineKey := ca.sign("client", 3)
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.yaml")
	newKey := func(args ...string) string {
		out, line, code := grebe(t, append([]string{"key"}, args...)...)
		if code != cli.Done || strings.Contains(line, strings.TrimSpace(out)) {
			t.Fatalf("grebe key exits with %d and says %q", code, line)
		}
		f, err := os.OpenFile(keys, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(line)
			f.Close()
		}
		file := filepath.Join(dir, args[1]+".key")
		if err == nil {
			err = os.WriteFile(file, []byte(out), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	shop := newKey("--name", "shop", "--roles", "serve")
	r := start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0",
		"--data-dir", filepath.Join(dir, "data"),
		"--admin-listen=", "--grpc-listen=", "--slo-ms", "30000", "--set", "auth.keys="+keys,
		"--set", "tls.cert="+cert, "--set", "tls.key="+certKey, "--set", "tls.client_ca="+ca.file)
	url := strings.Replace(r.http, "http:", "https:", 1)
	rank := func(more ...string) (string, int) {
		_, errs, code := grebe(t, append([]string{"rank", "--server", url, "--user", "ana", "--candidates", "i3,i10"},
			more...)...)
		return errs, code
	}
	shown := []string{"--ca", ca.file, "--cert", mine, "--cert-key", mineKey}
	if errs, code := rank(append(shown, "--key-file", shop)...); code != cli.Done {
		t.Fatalf("with a key and a certificate: exits with %d and says %q", code, errs)
	}
	if errs, code := rank(shown...); code != cli.Failed || !strings.Contains(errs, "a key is needed") ||
		!strings.Contains(errs, "--key-file FILE") {
		t.Errorf("without a key: exits with %d and says %q", code, errs)
	}
	if errs, code := rank("--ca", ca.file, "--key-file", shop); code != cli.Failed {
		t.Errorf("without a certificate: exits with %d and says %q", code, errs)
	}
	stranger := newAuthority(t, "stranger")
	his, hisKey := stranger.sign("thief", 4)
	if errs, code := rank("--ca", ca.file, "--cert", his, "--cert-key", hisKey, "--key-file", shop); code != cli.Failed {
		t.Errorf("with a stranger's certificate: exits with %d and says %q", code, errs)
	}

	// A second key and a new certificate are taken over at a SIGHUP.
	boss := newKey("--name", "boss", "--roles", "admin")
	if errs, code := rank(append(shown, "--key-file", boss)...); code != cli.Failed ||
		!strings.Contains(errs, "not known") {
		t.Errorf("a key that the server has not read yet: exits with %d and says %q", code, errs)
	}
	ca.sign("server", 5)
	r.hangup(t, "configuration read again")
	if errs, code := rank(append(shown, "--key-file", boss)...); code != cli.Done {
		t.Errorf("the new key: exits with %d and says %q", code, errs)
	}
	if got := serialOf(t, strings.TrimPrefix(url, "https://"), ca, mine, mineKey); got != 5 {
		t.Errorf("the server shows certificate %d, want the new one, 5", got)
	}
	// A file that cannot be used changes nothing.
	if err := os.WriteFile(keys, []byte("- {name: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.hangup(t, "the old one stays")
	if errs, code := rank(append(shown, "--key-file", shop)...); code != cli.Done {
		t.Errorf("after a broken file of keys the old ones must stay: exits with %d and says %q", code, errs)
	}
	if exit := r.stop(t); exit != cli.Done {
		t.Errorf("exits with %d", exit)
	}
}

func serialOf(t *testing.T, addr string, ca *authority, cert, key string) int64 {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// hangup sends the signal and waits for the line of the log that answers it.
func (r *running) hangup(t *testing.T, want string) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	defer patience(t, r.cmd)()
	for line := range r.log {
		if strings.Contains(line, want) {
			return
		}
	}
	t.Fatalf("the server ended without logging %q", want)
}

func TestHangupChangesDeadlines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grebe.yaml")
	base, err := os.ReadFile(filepath.Join(demoData, demo.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	write := func(more string) {
		t.Helper()
		text := strings.ReplaceAll(string(base), "path: ", "path: "+demoData+"/")
		if err := os.WriteFile(file, []byte(text+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits: {deadline_ms: 30000}\n")
	r := start(t, "serve", "-c", file, "--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--admin-listen=",
		"--grpc-listen=",
		"--set", "catalog.items="+filepath.Join(demoData, "items.ndjson"), "--set",
		"catalog.users="+filepath.Join(demoData, "users.ndjson"))
	const late = `{"user": {"id": "ana"}, "candidates": [{"id": "i3"}], "deadline_ms": 29000}`
	if code, body := r.get(t, "POST", "/v1/rank", late); code != http.StatusOK {
		t.Fatalf("rank is %d: %s", code, body)
	}
	write("limits: {deadline_ms: 2000}\nworkers: 2\n")
	r.hangup(t, "take effect after a restart")
	if code, body := r.get(t, "POST", "/v1/rank", late); code != http.StatusBadRequest ||
		!strings.Contains(body, "between 1 and 2000") {
		t.Errorf("a deadline above the new limit is %d: %s", code, body)
	}
	r.stop(t)
}

// A key is added only to a file that the server takes with it.
func TestKeysAreAddedToWhatTheServerTakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	add := func(name string, want int, says string) {
		t.Helper()
		if out, errs, code := grebe(t, "key", "--name", name, "--add", file); code != want || !strings.Contains(errs, says) ||
			(out != "") != (want == cli.Done) {
			t.Errorf("a key for %s: exits with %d and says %q and %q, want %d and %q", name, code, out, errs, want, says)
		}
	}
	add("shop", cli.Done, "")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.TrimSpace(data), 0o600); err != nil { // as an editor may leave it
		t.Fatal(err)
	}
	add("import", cli.Done, "")
	add("shop", cli.Failed, `"shop"`)
	if keys, err := app.ReadKeys(file); err != nil || len(keys) != 2 {
		t.Errorf("the file has %d keys, %v; want 2", len(keys), err)
	}
	if err := os.WriteFile(file, []byte("- {name: "), 0o600); err != nil {
		t.Fatal(err)
	}
	add("other", cli.Failed, "nothing was added")
}

// Why a request did not get through is not always that there is no server.
func TestHintsFitTheProblem(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	open := httptest.NewServer(http.NotFoundHandler())
	defer open.Close()
	for server, says := range map[string]string{
		secure.URL: "--ca FILE",
		strings.Replace(secure.URL, "https:", "http:", 1): "HTTPS server",
		strings.Replace(open.URL, "http:", "https:", 1):   "speaks HTTP without TLS",
		"http://127.0.0.1:1":                              "is a server running",
	} {
		if _, errs, code := grebe(t, "rank", "--server", server, "--user", "a", "--candidates", "b"); code != cli.Failed ||
			!strings.Contains(errs, says) {
			t.Errorf("%s: exits with %d and says %q, want %q", server, code, errs, says)
		}
	}
}
