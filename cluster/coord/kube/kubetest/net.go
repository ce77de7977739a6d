package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Network connects clients with a server through memory, without TLS, for virtual time.
type Network struct {
	s *Server

	mu    sync.Mutex
	web   *http.Server
	l     *listener // of web; nil: the server is killed
	conns []net.Conn
	links []*Link
	wait  sync.WaitGroup
}

// NewNetwork starts to serve. It ends with the test.
func NewNetwork(t testing.TB, s *Server) *Network {
	n := &Network{s: s}
	n.Start()
	t.Cleanup(n.end)
	return n
}

// end kills the server and lets everything out of the network.
func (n *Network) end() {
	n.Kill()
	n.mu.Lock()
	for _, l := range n.links {
		l.Resume()
		l.Cut()
	}
	n.mu.Unlock()
	n.wait.Wait()
}

// Start begins to serve, again after Kill.
func (n *Network) Start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	web := &http.Server{Handler: n.s, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
	web.Protocols.SetUnencryptedHTTP2(true)
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	n.web, n.l = web, l
	n.wait.Go(func() { _ = web.Serve(l) })
}

// Kill ends all connections and refuses new ones. The data stays.
func (n *Network) Kill() {
	n.mu.Lock()
	web, conns := n.web, n.conns
	n.web, n.l, n.conns = nil, nil, nil
	n.mu.Unlock()
	if web == nil {
		return
	}
	_ = web.Close()
	for _, c := range conns { // also those that were accepted just now
		c.Close()
	}
}

// Restart kills and starts again.
func (n *Network) Restart() {
	n.Kill()
	time.Sleep(100 * time.Millisecond)
	n.Start()
}

// Link is one client's way to the server.
type Link struct {
	n *Network

	mu    sync.Mutex
	open  chan struct{} // closed: bytes pass
	conns map[net.Conn]struct{}
}

// Link returns a new way to the server.
func (n *Network) Link() *Link {
	l := &Link{n: n, open: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	close(l.open)
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	return l
}

// Stall lets nothing pass. Connections stay open.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		l.open = make(chan struct{})
	default:
	}
}

// Resume ends Stall.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

// Cut ends all connections.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

func (l *Link) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Dial connects to the server. A stalled link accepts: that is what a stopped process's kernel does.
func (l *Link) Dial(ctx context.Context) (net.Conn, error) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	l.n.mu.Lock()
	at := l.n.l
	l.n.conns = append(l.n.conns, server)
	l.n.mu.Unlock()
	if at == nil {
		return nil, errors.New("connection refused")
	}
	select {
	case at.conns <- server:
	case <-at.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	l.conns[client] = struct{}{}
	l.mu.Unlock()
	gone := sync.OnceFunc(func() {
		near.Close()
		far.Close()
		l.mu.Lock()
		delete(l.conns, client)
		l.mu.Unlock()
	})
	l.relay(near, far, gone)
	l.relay(far, near, gone)
	return client, nil
}

// relay passes bytes on while the link is open. Some wait in the network meanwhile.
func (l *Link) relay(from, to net.Conn, gone func()) {
	inside, ended := make(chan []byte, 64), make(chan struct{})
	l.n.wait.Go(func() {
		defer close(inside)
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			select {
			case inside <- append([]byte(nil), buf[:n]...):
			case <-ended:
				return
			}
		}
	})
	l.n.wait.Go(func() {
		defer gone()
		defer close(ended)
		for {
			b, ok := <-inside
			<-l.gate() // the end of a connection is held as well
			if !ok {
				return
			}
			if _, err := to.Write(b); err != nil {
				return
			}
		}
	})
}

// listener accepts connections through memory.
type listener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// Token is the bearer token that Listen admits.
const Token = "a token of kubetest"

// Listen serves on a TCP port of this machine with TLS until the test ends. It returns the address for
// cluster.coordinator, such as kubernetes://127.0.0.1:PORT/NAMESPACE?token=FILE&ca=FILE.
func (s *Server) Listen(t testing.TB, namespace string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, err := certificate(filepath.Join(dir, "ca.crt"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "token"), []byte(Token+"\n"), 0o600)
	}
	if err != nil {
		l.Close()
		t.Fatal(err)
	}
	s.Admit(Token)
	web := &http.Server{Handler: s, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.ServeTLS(l, "", "")
	}()
	t.Cleanup(func() { _ = web.Close(); <-done })
	files := url.Values{"token": {filepath.Join(dir, "token")}, "ca": {filepath.Join(dir, "ca.crt")}}
	return fmt.Sprintf("kubernetes://%s/%s?%s", l.Addr(), namespace, files.Encode())
}

// certificate makes a certificate for 127.0.0.1 and writes its authority, which is itself, to a file.
func certificate(file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, os.WriteFile(file, text, 0o600)
}
